// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

namespace heed::detail {

/// The angles by which pairs of a head's elements are rotated at each position.
struct Angles {
  at::Tensor cos, sin;  // [1 or B, 1, L, R / 2] in the type that x is computed in
  bool interleaved;     // pair i is (2 i, 2 i + 1), else (i, i + R / 2)
};

/// x [B, H, L, D] with the first R elements of each head rotated; on the CPU in one pass.
at::Tensor rotate(const at::Tensor& x, const Angles& angles);

}  // namespace heed::detail
