// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_set>

namespace heed::detail {

/// Finds the tensors that a list holds twice. A parameter that two modules share, for example, is
/// listed once under each of its names.
class SeenTensors {
 public:
  /// Adds a tensor. Returns false if it was added before.
  bool add(const at::Tensor& tensor) { return seen_.insert(tensor.unsafeGetTensorImpl()).second; }

 private:
  std::unordered_set<const c10::TensorImpl*> seen_;
};

}  // namespace heed::detail
