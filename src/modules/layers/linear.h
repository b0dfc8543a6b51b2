// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/random_state.h"
#include "cpu/layers/linear.h"
#include "modules/layers/stand_in.h"

namespace heed::detail {

/// The matrix product that computes input weight^T + bias.
enum class LinearProduct {
  libtorch,   ///< at::linear
  pointwise,  ///< oneDNN's product: the operator mkldnn::_linear_pointwise
  few_rows,   ///< heed's kernel for up to 8 rows
  in_blocks,  ///< heed's product in blocks
  packed,     ///< heed's product with a packed weight
};

/// Returns the product that `linear` chooses for these tensors on this processor, by the rules in
/// docs/kernels.md, "Projections".
LinearProduct linear_product(const at::Tensor& input, const at::Tensor& weight,
                             const at::Tensor& bias);

/// Computes what at::linear computes, with the same derivatives and errors. `bias` may be
/// undefined. A packed weight has no gradient: throws c10::ValueError if it requires one.
HEED_API at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias = {});

/// Computes function(`linear`) in one pass with a packed weight. Returns nullopt if it is not
/// packed, or if autograd records the layer.
std::optional<at::Tensor> linear_with(OutputFunction function, const at::Tensor& input,
                                      const at::Tensor& weight, const at::Tensor& bias);

/// Input [.., K] for a product of LibTorch's: with a 0 in memory after each row where the product
/// would multiply the next row's first element by 0, whose infinity or NaN would come into this
/// row. `linear` calls it; callers of the next three functions do.
at::Tensor zero_after_rows(const at::Tensor& input);

// The next three functions take matrices, and compute without autograd.

/// Computes `linear`. LibTorch's product writes to the first rows of `memory` [n or more, N], which
/// is made if it is undefined, and which further calls can use again. Other products return memory
/// of their own.
at::Tensor linear_in_memory(at::Tensor& memory, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias);

/// output [n, N], contiguous, = input weight^T.
void write_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& output);

/// sum [n, N], contiguous, += input weight^T.
void add_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& sum);

/// Computes `linear` for several layers with the same input. If all of them choose the same
/// product, they are computed together, and the gradient of the input is one sum.
std::vector<at::Tensor> linear_together(const at::Tensor& input,
                                        const std::vector<LinearParameters>& layers);

/// Applies a module's Linear, or what stands in its place. Unlike LinearImpl::forward, it works in
/// a const module.
inline at::Tensor project(const torch::nn::Linear& linear, const at::Tensor& input) {
  if (const auto* own = stand_in_of(*linear)) return own->project(input);
  return detail::linear(input, linear->weight, linear->bias);
}

/// Applies several Linears to the same input, together if that is possible; see linear_together.
std::vector<at::Tensor> project_together(const std::vector<torch::nn::Linear>& linears,
                                         const at::Tensor& input);

/// While this object exists, random numbers differ between the processes that hold parts of a
/// Linear. Has no effect if this process has the whole Linear, or if `probability` is 0.
class OwnRandomNumbers {
 public:
  OwnRandomNumbers(const torch::nn::Linear& linear, at::Device device, double probability) {
    const auto& own = sharing(*linear);
    if (probability > 0.0 && own.part()) stream_.emplace(device, own.rank());
  }

 private:
  std::optional<RandomStream> stream_;
};

}  // namespace heed::detail
