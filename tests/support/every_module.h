// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <heed/heed.h>

#include <string>
#include <tuple>

#include "support/inputs.h"
#include "support/transformers.h"

/// Every module of heed, for what all of them must pass: a new one is a line here.
namespace heed::test::every_module {

inline constexpr int64_t B = 2, E = 32, H = 4, G = 2, D = 8, L = 11, V = 50;

inline const auto kSelf = [](auto& module, const at::Tensor& x) { return module(x); };

/// Sequence 1 has 7 tokens of the 11.
inline const auto kPadded = [](auto& module, const at::Tensor& x) {
  const auto lengths = at::arange(L, 3, 7 - L, at::device(x.device()).dtype(at::kLong));
  return module(x, padding_mask(lengths, L));
};

template <typename Visit>
void visit_attentions(const Visit& visit) {
  const auto both = [&](const std::string& name, const auto& module) {
    const auto x = uniform({B, L, E}, at::kFloat);
    visit(name, module, x, kSelf);
    visit(name + ", padded", module, x, kPadded);
  };
  both("Attention", Attention(E));
  both("AttentionV1", AttentionV1(E));
  both("MultiHeadAttention", MultiHeadAttention(E, H));
  both("causal, window",
       MultiHeadAttention(MultiHeadAttentionOptions(E, H).causal(true).window(3)));
  const GroupQueryAttentionOptions grouped(E, H, G);
  both("GroupQueryAttention", GroupQueryAttention(grouped));
  auto rotary = grouped;
  both("rotary, qk_norm",
       GroupQueryAttention(
           rotary.rotary(RotaryEmbeddingOptions(D)).qk_norm(QkNormOptions()).causal(true)));
  auto scored = grouped;
  auto across = grouped;
  both("qk_norm across heads",
       GroupQueryAttention(across.qk_norm(QkNormOptions().across_heads(true).unit_offset(true))));
  both("softcap, alibi, sinks",
       GroupQueryAttention(scored.softcap(0.5).alibi(true).sinks(true).causal(true)));
  both("ResidualAttention", ResidualAttention(MultiHeadAttentionOptions(E, H)));
  both("DifferentialAttention",
       DifferentialAttention(DifferentialAttentionOptions(E, G).causal(true)));
  both(
      "LatentAttention",
      LatentAttention(
          LatentAttentionOptions(E, H, 16).plain_head_dim(D).rotary_head_dim(4).value_head_dim(D)));
  visit("SelfAttention", SelfAttention(E, H), uniform({B, L, E}, at::kFloat),
        [](auto& module, const at::Tensor& x) { return std::get<0>(module(x, x, x)); });
}

template <typename Visit>
void visit_layers(const Visit& visit) {
  const auto x = uniform({B, L, E}, at::kFloat);
  visit("RMSNorm", RMSNorm(E), x, kSelf);
  visit("layer_norm", Norm(NormOptions(E)), x, kSelf);
  visit("FeedForward", FeedForward(FeedForwardOptions(E).dropout(0.1)), x, kSelf);
  const auto expert = FeedForwardOptions(E).hidden_dim(24).activation(Activation::swiglu);
  visit("MixtureOfExperts",
        MixtureOfExperts(MixtureOfExpertsOptions(expert, 4, 2).shared(expert).shared_gate(true)), x,
        kSelf);
  visit("HeadTransform", HeadTransform(HeadTransformOptions(E).dropout(0.1).norm(NormOptions(E))),
        x, kSelf);
  visit("AttentionPooling",
        AttentionPooling(AttentionPoolingOptions(GroupQueryAttentionOptions(E, H, G))), x, kSelf);
  visit("PositionEmbedding", PositionEmbedding(PositionEmbeddingOptions(E)), x, kSelf);
  visit("RelativePositionBias", RelativePositionBias(H), x,
        [](auto& bias, const at::Tensor& input) {
          const auto heads = input.unflatten(2, {H, D}).transpose(1, 2);
          const auto options = AttendOptions().relative_bias(bias->relative().relative_bias);
          return attend(heads, heads, heads, options).transpose(1, 2).flatten(2);
        });
}

template <typename Visit>
void visit_models(const Visit& visit) {
  const auto x = uniform({B, L, E}, at::kFloat);
  const auto plain = block_options(E, H, G);
  auto crossed = plain;
  crossed.cross_attention(true).norm_placement(NormPlacement::post);
  visit("cross-attention", TransformerBlock(crossed), x, [](auto& block, const at::Tensor& input) {
    return block->forward(input, TransformerInputs().memory(input.narrow(1, 0, 5)));
  });
  visit("Encoder", Encoder(EncoderOptions(plain, 2)), x, kPadded);
  visit("sandwich",
        TransformerBlock(
            llama_options(E, H, G).norm_placement(NormPlacement::sandwich).norm_unit_offset(true)),
        x, kSelf);
  visit("output", TransformerBlock(block_options(E, H, G).norm_placement(NormPlacement::output)), x,
        kSelf);
  visit("parallel",
        TransformerBlock(block_options(E, H, G).parallel(true).shared_norm(true).dropout(0.1)), x,
        kSelf);
  auto crossing = block_options(E, H, G).cross_attention(
      GroupQueryAttentionOptions(E, 2, 1).key_emb_dim(5).value_emb_dim(5));
  visit("cross-attention alone", TransformerBlock(crossing.self_attention(false).skip_scale(1.5)),
        x, [](auto& block, const at::Tensor& input) {
          return block->forward(input, TransformerInputs().memory(input.narrow(2, 0, 5)));
        });
  const LayerFactory own_norm = [] { return torch::nn::AnyModule(Norm(NormOptions(E))); };
  visit("norms by a function", TransformerBlock(block_options(E, H, G).norm(own_norm)), x, kSelf);
  visit("layer scale", TransformerBlock(block_options(E, H, G).layer_scale(0.1)), x, kSelf);
  auto local = plain;
  local.attention().window(3);
  visit("blocks that differ", Encoder(EncoderOptions({plain, local})), x, kPadded);
  visit("checkpointing", Encoder(EncoderOptions(plain, 2).checkpointing(true)), x,
        [](auto& encoder, const at::Tensor& input) {
          encoder->train();
          return encoder(input);
        });
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const auto learned = PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(L);
  visit("Decoder", Decoder(DecoderOptions(V, llama_options(E, H, G), 2)), tokens, kSelf);
  const auto text = TextEncoderOptions(V, EncoderOptions(plain, 2))
                        .positions(learned)
                        .type_vocab_size(2)
                        .embedding_norm(true);
  visit("TextEncoder", TextEncoder(text), tokens, kPadded);
  visit("ImageEncoder", ImageEncoder(ImageEncoderOptions(8, 4, EncoderOptions(plain, 2))),
        uniform({B, 3, 8, 8}, at::kFloat), kSelf);
  const auto pooled = [](auto& encoder, const at::Tensor& input) {
    return encoder->forward_pooled(input);
  };
  visit("pooled texts",
        TextEncoder(TextEncoderOptions(text).pooling(TextPooling::largest).projection_dim(6)),
        tokens, pooled);
  const auto images =
      ImageEncoderOptions(9, 4, EncoderOptions(plain, 2)).crop(true).patch_bias(false);
  const AttentionPoolingOptions pooling(GroupQueryAttentionOptions(E, H, G));
  visit("pooled images",
        ImageEncoder(ImageEncoderOptions(images)
                         .register_num(2)
                         .embedding_norm(true)
                         .pooled_norm(true)
                         .projection_dim(6)),
        uniform({B, 3, 9, 9}, at::kFloat), pooled);
  visit("images without a class token",
        ImageEncoder(ImageEncoderOptions(images).class_token(false).attention_pooling(pooling)),
        uniform({B, 3, 9, 9}, at::kFloat), pooled);
  const auto bias = RelativePositionBiasOptions(H).buckets(8).max_distance(9);
  const auto biased = EncoderOptions(plain, 2).relative_bias(bias).shared_relative_bias(false);
  visit("relative biases", Encoder(biased), x, kPadded);
  const EncoderDecoderOptions pair(
      TextEncoderOptions(V, EncoderOptions(plain, 2)).token_embedding(false).embedding_scale(2.0),
      DecoderOptions(V, plain, 2).score_bias(true).embedding_norm(true));
  visit("EncoderDecoder", EncoderDecoder(pair), tokens,
        [](auto& model, const at::Tensor& source) { return model(source, source); });
  visit("FrameEncoder", FrameEncoder(FrameEncoderOptions(4, 3, EncoderOptions(plain, 2))),
        uniform({B, 4, 5}, at::kFloat), kSelf);
  visit("learned positions", Decoder(DecoderOptions(V, plain, 2).positions(learned)), tokens,
        kSelf);
}

template <typename Visit>
void visit_task_heads(const Visit& visit) {
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const DecoderOptions decoder(V, llama_options(E, H, G), 2);
  const TextEncoderOptions encoder(V, EncoderOptions(block_options(E, H, G), 2));
  const auto pooler = HeadTransformOptions(E).activation(Activation::tanh);
  visit("Decoder without a head", Decoder(DecoderOptions(decoder).head(false)), tokens, kPadded);
  visit("SequenceClassifier",
        SequenceClassifier(SequenceClassifierOptions(encoder, 3).transform(pooler).dropout(0.1)),
        tokens, kPadded);
  visit("mean", SequenceClassifier(SequenceClassifierOptions(encoder, 3).pooling(Pooling::mean)),
        tokens, kPadded);
  visit("SequenceClassifier of a Decoder",
        SequenceClassifier(SequenceClassifierOptions(decoder, 1).padding_token(0).bias(false)),
        tokens, kPadded);
  visit("TokenClassifier", TokenClassifier(TokenClassifierOptions(encoder, 3).dropout(0.1)), tokens,
        kPadded);
  visit("TokenClassifier of a Decoder", TokenClassifier(TokenClassifierOptions(decoder, 3)), tokens,
        kSelf);
  visit("MaskedLanguageModel", MaskedLanguageModel(MaskedLanguageModelOptions(encoder)), tokens,
        kPadded);
}

/// visit(name, module, x, call): call(module, x) is the output; x [B, L, E] in float32, or tokens
/// [B, L].
template <typename Visit>
void visit_modules(const Visit& visit) {
  visit_attentions(visit);
  visit_layers(visit);
  visit_models(visit);
  visit_task_heads(visit);
}

}  // namespace heed::test::every_module
