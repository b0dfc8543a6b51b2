// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/feed_forward.h>
#include <torch/nn/modules/linear.h>

#include "cpu/isa/layers.h"

namespace heed::detail {

/// Whether an activation multiplies by a second projection.
bool is_gated(Activation activation);

/// The activation of x, or that of a gate. swiglu is not one of them: it is computed in one pass
/// with its product.
at::Tensor activate(Activation activation, const at::Tensor& x);

/// The activation of a layer's output, which a product with a packed weight computes as it writes
/// the output, if autograd does not record it.
at::Tensor project_activated(const torch::nn::Linear& linear, const at::Tensor& input,
                             Activation activation);

/// The form of swiglu that a layer's options say.
SwiGluForm swiglu_form(const FeedForwardOptions& options);

}  // namespace heed::detail
