// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/decoder.h>

#include <cstdint>

namespace heed::bench {

/// Sizes of a language model, in the order of turns.py's.
struct LanguageModelSizes {
  int64_t vocabulary, layers, width, heads, groups, hidden, context, batch;
};

/// Pre-norm with RMSNorm, SwiGLU, rotary embedding, no biases, and a head that shares its weights
/// with the embedding.
inline Decoder make_language_model(const LanguageModelSizes& sizes) {
  const auto attention = GroupQueryAttentionOptions(sizes.width, sizes.heads, sizes.groups)
                             .input_bias(false)
                             .output_bias(false)
                             .rotary(RotaryEmbeddingOptions(sizes.width / sizes.heads));
  const auto feed_forward = FeedForwardOptions(sizes.width)
                                .hidden_dim(sizes.hidden)
                                .activation(Activation::swiglu)
                                .bias(false);
  const auto block =
      TransformerBlockOptions(attention).norm(NormKind::rms_norm).feed_forward(feed_forward);
  return Decoder(DecoderOptions(sizes.vocabulary, block, sizes.layers));
}

}  // namespace heed::bench
