#pragma once

#include <ATen/core/Tensor.h>
#include <heed/feed_forward.h>

namespace heed::detail {

/// Whether an activation multiplies by a second projection.
bool is_gated(Activation activation);

/// The activation of x, or that of a gate. swiglu is not one of them: it is computed in one pass
/// with its product.
at::Tensor activate(Activation activation, const at::Tensor& x);

}  // namespace heed::detail
