// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <heed/export.h>

#include <cstdint>

namespace heed {

/// The slopes of attention with linear biases (ALiBi), for AttendOptions::alibi_slopes.
/// Press et al. 2022 (arXiv:2108.12409).
///
/// @code
/// auto options = heed::AttendOptions().causal(true).alibi_slopes(heed::alibi_slopes(8));
/// auto output = heed::attend(query, key, value, options);  // query [B, 8, L, D]
/// @endcode
///
/// If the number of heads H is a power of two, head h has the slope 2^(-8 (h + 1) / H). For other
/// numbers, the slopes of the next lower power of two are followed by every second slope of the
/// next higher one, as in the authors' code.
///
/// Returns float32 [heads]. Throws c10::ValueError when heads < 1.
HEED_API at::Tensor alibi_slopes(int64_t heads, at::Device device = at::kCPU);

}  // namespace heed
