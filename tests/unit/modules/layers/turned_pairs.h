// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/TensorOperators.h>
#include <heed/rotary_embedding.h>

#include <cstdint>
#include <utility>

#include "support/expect.h"

/// Pairs of elements that are turned by given angles, computed one after the other in float64.

namespace heed::test::rotary_axes {

/// The sizes of x [B, H, L, D].
constexpr int64_t B = 2, H = 3, L = 5, D = 8;

/// Cosines and sines of the angles of each pair at each token.
struct Turns {
  at::Tensor cos, sin;  // [B, L, R / 2], float64, on the CPU
};

/// The numbers of the two elements of a pair.
inline std::pair<int64_t, int64_t> elements_of(RotaryPairing pairing, int64_t pair, int64_t pairs) {
  if (pairing == RotaryPairing::interleaved) return {2 * pair, 2 * pair + 1};
  return {pair, pair + pairs};
}

/// x [B, H, L, D] in float64 on the CPU, where each pair (a, b) is (a cos - b sin, b cos + a sin).
inline at::Tensor turned(const at::Tensor& x, const Turns& turns, RotaryPairing pairing) {
  auto result = x.cpu().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
  auto numbers = result.accessor<double, 4>();
  const auto cos = turns.cos.accessor<double, 3>(), sin = turns.sin.accessor<double, 3>();
  const auto pairs = turns.cos.size(2);
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t h = 0; h < x.size(1); ++h) {
      for (int64_t l = 0; l < x.size(2); ++l) {
        for (int64_t pair = 0; pair < pairs; ++pair) {
          const auto [one, other] = elements_of(pairing, pair, pairs);
          const double first = numbers[b][h][l][one], second = numbers[b][h][l][other];
          const double c = cos[b][l][pair], s = sin[b][l][pair];
          numbers[b][h][l][one] = first * c - second * s;
          numbers[b][h][l][other] = second * c + first * s;
        }
      }
    }
  }
  return result;
}

/// Products of two numbers of at most 1, each rounded, and the rounding of the result, whose size
/// is at most 2.
inline double rounding(at::ScalarType dtype) {
  const auto computed = unit_roundoff(dtype == at::kDouble ? at::kDouble : at::kFloat);
  return 4 * computed + 2 * unit_roundoff(dtype);
}

}  // namespace heed::test::rotary_axes
