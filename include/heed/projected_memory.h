// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace heed {

/// The keys and values that a module's `project_memory` computed from a memory, once for many
/// calls.
///
/// @code
/// auto memory = attention->project_memory(source, source);  // source [B, S, E]
/// auto y = attention->forward(query, memory);               // query [B, L, E]
/// @endcode
struct ProjectedMemory {
  /// Both tensors.
  ProjectedMemory(at::Tensor keys, at::Tensor values)
      : key(std::move(keys)), value(std::move(values)) {}

  at::Tensor key;    ///< [B, G, S, D]
  at::Tensor value;  ///< [B, G, S, Dv]
};

}  // namespace heed
