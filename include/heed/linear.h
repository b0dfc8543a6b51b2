// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>
#include <torch/nn/modules/linear.h>

namespace heed {

/// Applies a Linear as heed's modules do: x [..., in_features] -> [..., out_features]. A module of
/// your own that calls it gets the products that heed has measured to be the fastest for few rows
/// and small weights (docs/kernels.md, "Projections"), and layers that stand in a Linear's place:
/// torch::nn::LinearImpl::forward is not virtual, so that `fc->forward(x)` would never call them.
///
/// @code
/// torch::nn::Linear fc(64, 128);
/// auto y = heed::linear(fc, torch::randn({2, 10, 64}));  // [2, 10, 128]
/// @endcode
///
/// Returns what `fc->forward(x)` returns, up to rounding, with its derivatives and errors. Throws
/// c10::ValueError when `fc` is empty, and for a subclass of LinearImpl that is not a
/// LinearStandIn.
HEED_API at::Tensor linear(const torch::nn::Linear& fc, const at::Tensor& x);

}  // namespace heed
