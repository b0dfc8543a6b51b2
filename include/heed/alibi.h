#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <heed/export.h>

#include <cstdint>

namespace heed {

/// The slopes of attention with linear biases for AttendOptions::alibi_slopes: for a power of two,
/// 2^(-8 (h + 1) / H); for other numbers of heads, those of the next lower power followed by every
/// second one of the next higher, as the authors' code has it.
/// Press et al. 2022 (arXiv:2108.12409).
///
/// Returns float32 [heads]. Throws c10::ValueError when heads < 1.
HEED_API at::Tensor alibi_slopes(int64_t heads, at::Device device = at::kCPU);

}  // namespace heed
