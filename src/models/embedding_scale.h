// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>

#include "core/error.h"

namespace heed::detail {

/// Throws unless a factor of a model's is finite and not 0.
inline void check_factor(const char* function, const char* name, double factor) {
  HEED_CHECK(std::isfinite(factor) && factor != 0.0, "{}: {} ({}) must be finite and not 0",
             function, name, factor);
}

/// Embeddings x times a factor, which is rounded to their dtype.
inline at::Tensor scaled_embeddings(const at::Tensor& x, double factor) {
  return factor == 1.0 ? x : x * at::scalar_tensor(factor, x.options());
}

}  // namespace heed::detail
