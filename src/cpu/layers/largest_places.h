// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace heed::detail {

/// The places of the k largest numbers in each row [T, N]: int64 [T, k], the largest first. NaN is
/// the largest, as in at::topk. On the CPU, of equal numbers the first comes first.
at::Tensor largest_places(const at::Tensor& rows, int64_t k);

}  // namespace heed::detail
