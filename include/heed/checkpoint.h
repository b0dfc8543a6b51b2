#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>

#include <functional>
#include <vector>

namespace heed {

/// `checkpoint` for a std::function.
HEED_API at::Tensor checkpoint_function(
    std::function<at::Tensor(const std::vector<at::Tensor>& inputs)> function,
    const std::vector<at::Tensor>& inputs);

/// Returns function(inputs) without keeping the intermediate tensors. The backward pass computes
/// them again, which saves memory and takes more time. Chen et al. 2016 (arXiv:1604.06174).
///
/// @code
/// auto y = heed::checkpoint([&](const auto& in) { return block->forward(in[0]); }, {x});
/// y.sum().backward();
/// @endcode
///
/// The second computation uses the same random numbers and the same autocast state. Parameters of
/// modules that the function calls get their gradients. Any other tensor that the function uses
/// must be among `inputs` if it requires grad and is not a leaf. There must be at least one input.
/// In the backward pass, modules must be in the mode (training or eval) of the forward pass;
/// `Encoder` takes care of this for its blocks. A second derivative is not available: requesting
/// one is an error.
/// Throws c10::ValueError when the function uses a non-leaf tensor that requires grad and is not an
/// input.
template <typename Function>
at::Tensor checkpoint(const Function& function, const std::vector<at::Tensor>& inputs) {
  return checkpoint_function(function, inputs);
}

}  // namespace heed
