#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>

#include <functional>
#include <vector>

namespace heed {

/// `checkpoint` of a std::function.
HEED_API at::Tensor checkpoint_function(
    std::function<at::Tensor(const std::vector<at::Tensor>& inputs)> function,
    const std::vector<at::Tensor>& inputs);

/// function(inputs), whose inner tensors are computed again in the backward pass instead of being
/// kept: memory for time. Chen et al. 2016 (arXiv:1604.06174).
///
///     auto y = heed::checkpoint([&](const auto& x) { return block->forward(x[0]); }, {x});
///
/// Random numbers and autocast are the same when it is computed again. Parameters of modules that
/// the function calls get their gradients. Other tensors that require grad and have a history must
/// be among `inputs`, of which there is at least one.
/// Modules must be in the mode, training or not, that they were in: `Encoder` sees to it for its
/// blocks. There is no second derivative: asking for one is an error.
/// Throws c10::ValueError when the function uses such a tensor that is not an input.
template <typename Function>
at::Tensor checkpoint(const Function& function, const std::vector<at::Tensor>& inputs) {
  return checkpoint_function(function, inputs);
}

}  // namespace heed
