// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/group_query_attention.h>

#include <cstdint>

/// A small GroupQueryAttention in float64.

namespace heed::test::of_attention_inputs {

constexpr int64_t B = 4, E = 16, H = 4, G = 2, D = 4, L = 7;
constexpr double kTolerance = 1e-12;

inline GroupQueryAttentionOptions plain_options() { return {E, H, G}; }

inline GroupQueryAttentionOptions rotary_options() {
  return plain_options().rotary(RotaryEmbeddingOptions(D));
}

inline GroupQueryAttention made(const GroupQueryAttentionOptions& options) {
  GroupQueryAttention module(options);
  module->to(at::kDouble);
  return module;
}

}  // namespace heed::test::of_attention_inputs
