#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace heed {

/// The keys and values that a module's `project_memory` computed of a memory: once for many calls.
struct ProjectedMemory {
  /// Both tensors.
  ProjectedMemory(at::Tensor key, at::Tensor value)
      : key(std::move(key)), value(std::move(value)) {}

  at::Tensor key;    ///< [B, G, S, D]
  at::Tensor value;  ///< [B, G, S, Dv]
};

}  // namespace heed
