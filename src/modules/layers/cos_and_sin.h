// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace heed::detail {

/// Cosines and sines of float64 angles that need no gradient, in the shape of `angles`.
std::pair<at::Tensor, at::Tensor> cos_and_sin(const at::Tensor& angles);

}  // namespace heed::detail
