#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

struct CosAndSin {
  at::Tensor cos, sin;
};

/// Cosines and sines of float64 angles that need no gradient, in the shape of `angles`.
CosAndSin cos_and_sin(const at::Tensor& angles);

}  // namespace heed::detail
