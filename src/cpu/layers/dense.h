// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// `tensor`, on the CPU, contiguous. Transposes a matrix of float with all threads, where
/// `contiguous` uses one.
at::Tensor dense(const at::Tensor& tensor);

}  // namespace heed::detail
