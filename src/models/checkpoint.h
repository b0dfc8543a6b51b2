#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace heed::detail {

using Tensors = std::vector<at::Tensor>;

/// function(inputs), computed again in the backward pass instead of keeping what it computes in
/// between; with the same random numbers and under the same autocast. Chen et al. 2016
/// (arXiv:1604.06174). `parameters` are what else the function depends on.
at::Tensor checkpoint(std::function<at::Tensor(const Tensors&)> function, const Tensors& inputs,
                      const Tensors& parameters);

}  // namespace heed::detail
