// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>

#include <vector>

namespace heed {

/// Limits the norm of all gradients together: if it is above max_norm, multiplies them by
/// max_norm / (norm + 1e-6), in place. Returns the norm before. torch::nn::utils::clip_grad_norm_
/// with the norm of order 2; but a parameter that stands twice counts once, the host waits for the
/// device once, and sums on the CPU are more exact, in whatever order numbers lie in memory.
///
/// @code
/// heed::clip_grad_norm_(model->parameters(), /*max_norm=*/1.0);
/// @endcode
///
/// Parameters without a gradient are passed over; if none has one, the norm is 0. Gradients may be
/// Float, Double, BFloat16 or Half, on several devices and sparse. As with torch's function, a
/// gradient that is NaN makes all gradients NaN; one that is infinite makes itself NaN and the
/// others 0. If `error_if_nonfinite` is true, both are errors instead.
///
/// Throws c10::ValueError when max_norm is not above 0, a parameter is undefined, a gradient has
/// another dtype or layout, or the norm is not finite and `error_if_nonfinite` is true. Nothing has
/// changed then.
HEED_API double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                bool error_if_nonfinite = false);

}  // namespace heed
