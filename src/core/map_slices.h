// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace heed::detail {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Returns compute(tensors), where tensors may be undefined. If a vmap has batched some of them,
/// as autograd does for batched gradients, `compute` is called once for each slice and its results
/// are batched again. A kernel can read the memory of a slice, but not that of a batched tensor.
std::vector<at::Tensor> map_slices(const std::vector<at::Tensor>& tensors,
                                   const TensorFunction& compute);

}  // namespace heed::detail
