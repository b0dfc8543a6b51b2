// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>

#include <functional>
#include <type_traits>
#include <vector>

namespace heed {

/// `checkpoint` for a std::function of one or of several results.
/// @{
HEED_API at::Tensor checkpoint_function(
    std::function<at::Tensor(const std::vector<at::Tensor>& inputs)> function,
    const std::vector<at::Tensor>& inputs);
HEED_API std::vector<at::Tensor> checkpoint_function(
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)> function,
    const std::vector<at::Tensor>& inputs);
/// @}

/// Returns function(inputs) without keeping the intermediate tensors. The backward pass computes
/// them again, which saves memory and takes more time. Chen et al. 2016 (arXiv:1604.06174).
///
/// @code
/// auto y = heed::checkpoint([&](const auto& in) { return block->forward(in[0]); }, {x});
/// y.sum().backward();
/// @endcode
///
/// The function returns a tensor or a std::vector of them. Inputs and results may be undefined, and
/// a result that the function detaches requires no grad.
///
/// The second computation uses the same random numbers and the same autocast state. Parameters of
/// modules that the function calls get their gradients, and hooks on them run as without
/// checkpointing: once, on the whole gradient. Any other tensor that the function uses
/// must be among `inputs` if it requires grad and is not a leaf. There must be at least one input.
/// In the backward pass, modules must be in the mode (training or eval) of the forward pass;
/// `Encoder` takes care of this for its blocks. A second derivative is not available: requesting
/// one is an error.
/// Throws c10::ValueError when the function uses a non-leaf tensor that requires grad and is not an
/// input, or changes an input in place. The backward pass throws it when an input, or a parameter
/// that has a gradient, has been changed in place; pass other tensors that could change, such as
/// masks, as inputs too.
template <typename Function>
auto checkpoint(const Function& function, const std::vector<at::Tensor>& inputs) {
  using Result =
      std::decay_t<std::invoke_result_t<const Function&, const std::vector<at::Tensor>&>>;
  static_assert(
      std::is_same_v<Result, at::Tensor> || std::is_same_v<Result, std::vector<at::Tensor>>,
      "heed::checkpoint: function must return an at::Tensor or a std::vector<at::Tensor>");
  return checkpoint_function(std::function<Result(const std::vector<at::Tensor>&)>(function),
                             inputs);
}

}  // namespace heed
