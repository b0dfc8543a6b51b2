#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_set>

namespace heed::detail {

/// Finds the tensors that a list holds twice, such as a parameter that two modules share: it stands
/// once under each of its names.
class SeenTensors {
 public:
  /// Whether it has not been added before.
  bool add(const at::Tensor& tensor) { return seen_.insert(tensor.unsafeGetTensorImpl()).second; }

 private:
  std::unordered_set<const c10::TensorImpl*> seen_;
};

}  // namespace heed::detail
