#pragma once

#include <ATen/ops/layer_norm.h>

#include "core/autocast.h"

namespace heed::detail {

/// LibTorch's layer_norm over the last dimension [D]. `bias` may be undefined.
inline at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                             double eps) {
  // Only on the CPU and under autocast does at::layer_norm take half precision with parameters in
  // float32.
  const auto dtype = x.scalar_type();
  const bool is_taken = dtype == weight.scalar_type() || x.is_cpu() || is_autocast(x);
  if (is_taken) return at::layer_norm(x, weight.sizes(), weight, bias, eps);
  return at::layer_norm(x.to(weight.scalar_type()), weight.sizes(), weight, bias, eps).to(dtype);
}

}  // namespace heed::detail
