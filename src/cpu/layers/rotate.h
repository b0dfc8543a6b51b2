#pragma once

#include <heed/rotary_embedding.h>

namespace heed::detail {

/// x [B, H, L, D] with the first 2 * angles.cos.size(3) elements of each head turned; on the CPU in
/// one pass.
at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles, RotaryPairing pairing);

}  // namespace heed::detail
