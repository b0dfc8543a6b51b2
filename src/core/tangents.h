// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// Whether a tensor, which may be undefined, carries a tangent of forward-mode differentiation.
/// heed's kernels would drop it; LibTorch's operators propagate it.
inline bool has_tangent(const at::Tensor& tensor) {
  return tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
}

}  // namespace heed::detail
