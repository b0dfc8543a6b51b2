// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace heed::test {

/// Arguments of an attention, and dropout's outcome.
struct ReferenceInput {
  at::Tensor query, key, value;  // [B, H, L, D], [B, G, S, D], [B, G, S, Dv]
  at::Tensor mask, bias;         // 4-D, or undefined; mask: nonzero = may attend
  bool causal = false;
  std::optional<int64_t> window;
  std::optional<double> scale, softcap;
  at::Tensor alibi_slopes, sinks;  // [H], or undefined
  at::Tensor kept;                 // dropout's factor for each weight [B, H, L, S], or undefined
  at::Tensor output_gradient;      // [B, H, L, Dv]; undefined: no gradients are computed
  at::Tensor lse_gradient;         // [B, H, L], or undefined
};

struct ReferenceResult {
  at::Tensor output, weights;  // float64
  at::Tensor lse;              // [B, H, L]: log of the sum of exp(score), a sink included
  at::Tensor query_grad, key_grad, value_grad, bias_grad, sinks_grad;
  at::Tensor relative_bias_grad, alibi_slopes_grad;  // only dense_reference computes them
};

/// Attention and its gradients as their definitions read: scalar loops in float64 that share no
/// code with the library.
ReferenceResult reference_attention(const ReferenceInput& input);

}  // namespace heed::test
