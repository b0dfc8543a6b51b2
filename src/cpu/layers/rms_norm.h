#pragma once

#include <ATen/core/Tensor.h>

#include "core/dtypes.h"

namespace heed::detail {

/// Whether a norm takes inputs of one dtype with parameters of another: the same, or the one in
/// which it computes.
inline bool norm_takes(at::ScalarType input, at::ScalarType parameters) {
  return is_attention_dtype(input) && (parameters == input || parameters == compute_dtype(input));
}

/// x / sqrt(mean(x^2) + eps) * (weight + offset) over the last dimension [D], of dtypes that
/// `norm_takes`, as x; on the CPU in one pass.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset = 0.0);

struct RmsNormGradients {
  at::Tensor x, weight;
};

/// Its gradients; while autograd records, they have derivatives of their own.
RmsNormGradients rms_norm_gradients(const at::Tensor& x, const at::Tensor& weight, double eps,
                                    const at::Tensor& output_gradient, double offset = 0.0);

}  // namespace heed::detail
