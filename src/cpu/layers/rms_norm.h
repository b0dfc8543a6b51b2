// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "core/dtypes.h"
#include "cpu/layers/recipe.h"

namespace heed::detail {

/// Whether a norm takes these dtypes: parameters have the dtype of the input, or the one in which
/// the norm of such an input is computed.
inline bool norm_takes(at::ScalarType input, at::ScalarType parameters) {
  return is_attention_dtype(input) && (parameters == input || parameters == compute_dtype(input));
}

/// x / sqrt(mean(x^2) + eps) * (weight + offset) over the last dimension [D], in the dtype of x,
/// for dtypes that `norm_takes`; on the CPU in one pass.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset = 0.0);

/// The recipe of an output of `rms_norm`; null if the tensor is none, or if no kernel computed it.
c10::intrusive_ptr<Recipe> rms_norm_recipe(const at::Tensor& output);

struct RmsNormGradients {
  at::Tensor x, weight;
};

/// The gradients of `rms_norm`. While autograd records, they can be differentiated again.
RmsNormGradients rms_norm_gradients(const at::Tensor& x, const at::Tensor& weight, double eps,
                                    const at::Tensor& output_gradient, double offset = 0.0);

}  // namespace heed::detail
