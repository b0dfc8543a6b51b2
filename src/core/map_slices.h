#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace heed::detail {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Returns the results of `compute` for tensors that may be undefined. Where a vmap has batched
/// some of them, as the batched gradients of autograd are, it is called once for each slice, in
/// which a kernel finds memory, and its results are batched again.
std::vector<at::Tensor> map_slices(const std::vector<at::Tensor>& tensors,
                                   const TensorFunction& compute);

}  // namespace heed::detail
