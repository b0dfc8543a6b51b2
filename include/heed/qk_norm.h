#pragma once

#include <heed/export.h>
#include <heed/norm.h>
#include <torch/arg.h>

namespace heed {

/// Normalisation of each head of query and key over its D elements, so that scores cannot grow
/// without bound: q_norm and k_norm, a `Norm(D)` each, which the heads share. Henry et al. 2020
/// (arXiv:2010.04245).
struct HEED_API QkNormOptions {
  /// Of both norms.
  TORCH_ARG(NormKind, kind) = NormKind::rms_norm;
  /// Added to the variance or the mean square.
  TORCH_ARG(double, eps) = 1e-6;
  /// Whether heads are rotated first; no difference to `rms_norm` but for its weight.
  TORCH_ARG(bool, after_rotary) = false;
};

}  // namespace heed
