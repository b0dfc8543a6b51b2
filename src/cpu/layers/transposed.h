#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// A float matrix [R, C] on the CPU as a contiguous [C, R], by all threads: `contiguous` uses one.
at::Tensor transposed(const at::Tensor& matrix);

}  // namespace heed::detail
