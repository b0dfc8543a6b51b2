// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/rotary_embedding.h>

#include <cstdint>

#include "attend_call.h"
#include "attend_case.h"

namespace heed::fuzz {

/// The scalings that Case::scaling stands for.
enum Scaling : int64_t {
  kUnscaled,
  kLinear,
  kNtk,
  kDynamicNtk,
  kYarn,
  kYarnBetweenPairs,  // not truncated
  kLlama3,
  kLongRope,
  kScalings,
};

/// The embedding's options, with the case's scaling.
RotaryEmbeddingOptions scaled_rotary(const Case& c);

/// The length that the embedding was trained for, and one that is at most two away from it.
int64_t trained_length(const Case& c);
int64_t draw_length(const Case& c);

/// Whether a token at a sequence's length `a` is rotated as one at its length `b`.
bool is_rotated_alike(const Case& c, int64_t a, int64_t b);

/// The factor that the scaling has on query and key.
double magnitude(const Case& c);

/// x [H, L, D] in float64, token i at positions[i] of a sequence that has lengths[i] tokens: the
/// scalings' definitions in scalar loops.
at::Tensor rotate_scaled(const Case& c, const at::Tensor& x, const Integers& positions,
                         const Integers& lengths);

}  // namespace heed::fuzz
