#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// x / sqrt(mean(x^2) + eps) * weight over the last dimension [D]; on the CPU in one pass.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace heed::detail
