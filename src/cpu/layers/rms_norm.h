#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// x / sqrt(mean(x^2) + eps) * (weight + offset) over the last dimension [D]; on the CPU in one
/// pass.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset = 0.0);

struct RmsNormGradients {
  at::Tensor x, weight;
};

/// Its gradients; while autograd records, they have derivatives of their own.
RmsNormGradients rms_norm_gradients(const at::Tensor& x, const at::Tensor& weight, double eps,
                                    const at::Tensor& output_gradient, double offset = 0.0);

}  // namespace heed::detail
