// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/export.h>
#include <heed/norm.h>
#include <torch/arg.h>

namespace heed {

/// Options of QK-norm: each head of query and key is normalized over its D elements, so that scores
/// cannot grow without bound. The module has q_norm and k_norm, each a `Norm(D)` that all heads
/// share; with across_heads, a `Norm(H * D)` and a `Norm(G * D)`. Henry et al. 2020
/// (arXiv:2010.04245).
///
/// @code
/// auto norm = heed::QkNormOptions().kind(heed::NormKind::layer_norm);
/// auto options = heed::GroupQueryAttentionOptions(64, 4, 2).qk_norm(norm);
/// heed::GroupQueryAttention attention(options);
/// @endcode
struct HEED_API QkNormOptions {
  /// The kind of both norms.
  TORCH_ARG(NormKind, kind) = NormKind::rms_norm;
  /// Added to the variance or the mean square.
  HEED_NUMBER_ARG(double, eps) = 1e-6;
  /// Whether heads are rotated before they are normalized. With `rms_norm`, the order makes a
  /// difference only through the weight.
  TORCH_ARG(bool, after_rotary) = false;
  /// Whether all heads of a token's query are normalized together, and all of its key, as in OLMo 2
  /// (arXiv:2501.00656).
  TORCH_ARG(bool, across_heads) = false;
  /// As in NormOptions.
  TORCH_ARG(bool, unit_offset) = false;
};

}  // namespace heed
