// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/transformer.h>

#include <cstdint>

namespace heed::test {

inline TransformerBlockOptions block_options(int64_t E, int64_t H, int64_t G) {
  return TransformerBlockOptions(GroupQueryAttentionOptions(E, H, G));
}

/// The options of today's models: pre-norm by rms_norm, swiglu, rotary embedding, no biases.
inline TransformerBlockOptions llama_options(int64_t E, int64_t H, int64_t G) {
  return TransformerBlockOptions(
             GroupQueryAttentionOptions(E, H, G).input_bias(false).output_bias(false).rotary(
                 RotaryEmbeddingOptions(E / H)))
      .norm(NormKind::rms_norm)
      .feed_forward(FeedForwardOptions(E).activation(Activation::swiglu).bias(false));
}

}  // namespace heed::test
