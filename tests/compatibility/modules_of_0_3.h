// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/ops/randint.h>
#include <heed/heed.h>

#include <string>

#include "modules_of_0_2.h"

/// Modules that came with version 0.3, and modules whose weights it packs: what compiles with 0.3
/// and with all that came since. Their files are in files/0.3, as 0.3 wrote them.
namespace heed::compatibility {

template <typename Visit>
void visit_modules_of_0_3(const Visit& visit) {
  const auto x = numbers({B, L, E});
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const auto expert = FeedForwardOptions(E).hidden_dim(4).activation(Activation::swiglu);
  visit("mixture_of_experts",
        MixtureOfExperts(MixtureOfExpertsOptions(expert, /*expert_num=*/3, /*top_k=*/2)
                             .shared(expert)
                             .shared_gate(true)
                             .choice_bias(true)),
        x, kSelf);
  const GroupQueryAttentionOptions grouped(E, H, G);
  visit("attention_pooling", AttentionPooling(AttentionPoolingOptions(grouped)), x, kSelf);
  visit("layer_scale", TransformerBlock(plain_block().layer_scale(0.1)), x, kSelf);
  visit("cross_attention_of_two_heads",
        TransformerBlock(plain_block().self_attention(false).cross_attention(
            GroupQueryAttentionOptions(E, 2, 1).key_emb_dim(5).value_emb_dim(5))),
        x, [](auto& block, const at::Tensor& input) {
          return block->forward(input, TransformerInputs().memory(input.narrow(2, 0, 5)));
        });
  visit("latent_block",
        TransformerBlock(
            TransformerBlockOptions(
                LatentAttentionOptions(E, H, 6).plain_head_dim(3).rotary_head_dim(2).value_head_dim(
                    3))
                .feed_forward(MixtureOfExpertsOptions(expert, 3, 1))),
        x, kSelf);
  const auto bias = RelativePositionBiasOptions(H).buckets(4).max_distance(5);
  visit("relative_bias",
        Encoder(EncoderOptions(plain_block(), 1).relative_bias(bias).shared_relative_bias(false)),
        x, kPadded);
  visit("encoder_decoder",
        EncoderDecoder(EncoderDecoderOptions(
            TextEncoderOptions(V, EncoderOptions(plain_block(), 1)).token_embedding(false),
            DecoderOptions(V, plain_block(), 1).score_bias(true).embedding_norm(true))),
        tokens, [](auto& model, const at::Tensor& source) { return model(source, source); });
  visit("frame_encoder",
        FrameEncoder(
            FrameEncoderOptions(/*mels=*/4, /*positions=*/3, EncoderOptions(plain_block(), 1))),
        numbers({B, 4, 5}), kSelf);
  const TextEncoderOptions text(V, EncoderOptions(plain_block(), 1));
  const auto pooler = HeadTransformOptions(E).activation(Activation::tanh);
  visit("sequence_classifier",
        SequenceClassifier(SequenceClassifierOptions(text, 3).transform(pooler)), tokens, kPadded);
  visit("token_classifier", TokenClassifier(TokenClassifierOptions(text, 3)), tokens, kPadded);
  visit("masked_language_model", MaskedLanguageModel(MaskedLanguageModelOptions(text)), tokens,
        kPadded);
}

/// A model whose Linears have `width` columns.
inline Decoder packable_decoder(int64_t width) {
  const auto block =
      TransformerBlockOptions(
          GroupQueryAttentionOptions(width, H, G).rotary(RotaryEmbeddingOptions(width / H)))
          .norm(NormKind::rms_norm)
          .feed_forward(FeedForwardOptions(width).hidden_dim(width).activation(Activation::swiglu));
  Decoder model(DecoderOptions(V, block, 1));
  model->eval();
  return model;
}

/// visit(name, options, width, tolerance): int4 needs 32 columns. The outputs may differ by this
/// share of the largest, for other processors round otherwise: sums of products, and in float16 and
/// bfloat16 each result too; with activations of 8 bits, an input may become its neighbor.
template <typename Visit>
void visit_packings(const Visit& visit) {
  visit("float32", PackOptions(PackFormat::float32), E, 1e-5);
  visit("bfloat16", PackOptions(PackFormat::bfloat16), E, 2e-2);
  visit("float16", PackOptions(PackFormat::float16), E, 2e-3);
  visit("int8", PackOptions(PackFormat::int8), E, 1e-4);
  visit("int4", PackOptions(PackFormat::int4).embedding_format(PackFormat::int8), 32, 1e-4);
  visit("int4_zero_point", PackOptions(PackFormat::int4).zero_point(true), 32, 1e-4);
  visit("int8_activations", PackOptions(PackFormat::int8).quantize_activations(true), E, 2e-2);
}

}  // namespace heed::compatibility
