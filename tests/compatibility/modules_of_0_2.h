// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <heed/heed.h>

#include <string>
#include <tuple>

/// Every module of version 0.2, as its programs make it: what compiles with 0.2 and with all that
/// came since. Their weights, inputs and outputs are in files/0.2, as 0.2 wrote them.
namespace heed::compatibility {

inline constexpr int64_t B = 2, E = 8, H = 4, G = 2, D = 2, L = 5, V = 11;

inline at::Tensor numbers(at::IntArrayRef shape) { return at::rand(shape) * 2 - 1; }

inline const auto kSelf = [](auto& module, const at::Tensor& x) { return module(x); };

/// Sequence 1 has 3 tokens of the 5.
inline const auto kPadded = [](auto& module, const at::Tensor& x) {
  return module(x, padding_mask(at::arange(L, 2, -2, at::kLong), L));
};

inline TransformerBlockOptions plain_block() {
  return TransformerBlockOptions(GroupQueryAttentionOptions(E, H, G))
      .feed_forward(FeedForwardOptions(E).hidden_dim(12));
}

/// The options of a Llama's block.
inline TransformerBlockOptions llama_block() {
  return TransformerBlockOptions(
             GroupQueryAttentionOptions(E, H, G).input_bias(false).output_bias(false).rotary(
                 RotaryEmbeddingOptions(D)))
      .norm(NormKind::rms_norm)
      .feed_forward(
          FeedForwardOptions(E).hidden_dim(12).activation(Activation::swiglu).bias(false));
}

inline DecoderOptions llama() { return DecoderOptions(V, llama_block(), 1); }

template <typename Visit>
void visit_attentions(const Visit& visit) {
  const auto x = numbers({B, L, E});
  visit("attention", Attention(E), x, kPadded);
  visit("attention_v1", AttentionV1(E), x, kPadded);
  visit("multi_head_attention", MultiHeadAttention(E, H), x, kPadded);
  visit("window", MultiHeadAttention(MultiHeadAttentionOptions(E, H).causal(true).window(3)), x,
        kSelf);
  const GroupQueryAttentionOptions grouped(E, H, G);
  visit("group_query_attention", GroupQueryAttention(grouped), x, kPadded);
  auto rotary = grouped;
  rotary.rotary(RotaryEmbeddingOptions(D)).qk_norm(QkNormOptions()).causal(true);
  visit("rotary", GroupQueryAttention(rotary), x, kSelf);
  auto across = grouped;
  across.qk_norm(QkNormOptions().across_heads(true).unit_offset(true));
  visit("norm_across_heads", GroupQueryAttention(across), x, kSelf);
  auto scored = grouped;
  scored.softcap(0.5).alibi(true).sinks(true).causal(true);
  visit("alibi_and_sinks", GroupQueryAttention(scored), x, kSelf);
  visit("residual_attention", ResidualAttention(MultiHeadAttentionOptions(E, H)), x, kPadded);
  visit("differential_attention",
        DifferentialAttention(DifferentialAttentionOptions(E, G).causal(true)), x, kSelf);
  visit("latent_attention",
        LatentAttention(
            LatentAttentionOptions(E, H, 6).plain_head_dim(3).rotary_head_dim(2).value_head_dim(3)),
        x, kPadded);
  visit("self_attention", SelfAttention(E, H), x, [](auto& module, const at::Tensor& input) {
    return std::get<0>(module(input, input, input));
  });
}

template <typename Visit>
void visit_layers(const Visit& visit) {
  const auto x = numbers({B, L, E});
  visit("rms_norm", RMSNorm(E), x, kSelf);
  visit("layer_norm", Norm(NormOptions(E)), x, kSelf);
  visit("feed_forward", FeedForward(FeedForwardOptions(E)), x, kSelf);
  visit("swiglu", FeedForward(FeedForwardOptions(E).activation(Activation::swiglu)), x, kSelf);
  visit("sinusoidal_positions", PositionEmbedding(PositionEmbeddingOptions(E)), x, kSelf);
}

template <typename Visit>
void visit_blocks(const Visit& visit) {
  const auto x = numbers({B, L, E});
  visit("cross_attention",
        TransformerBlock(plain_block().cross_attention(true).norm_placement(NormPlacement::post)),
        x, [](auto& block, const at::Tensor& input) {
          return block->forward(input, TransformerInputs().memory(input.narrow(1, 0, 3)));
        });
  visit("sandwich",
        TransformerBlock(
            llama_block().norm_placement(NormPlacement::sandwich).norm_unit_offset(true)),
        x, kSelf);
  visit("output_norms", TransformerBlock(plain_block().norm_placement(NormPlacement::output)), x,
        kSelf);
  visit("parallel", TransformerBlock(plain_block().parallel(true).shared_norm(true)), x, kSelf);
  visit("encoder", Encoder(EncoderOptions(plain_block(), 2)), x, kPadded);
}

template <typename Visit>
void visit_models(const Visit& visit) {
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const auto learned = PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(L);
  visit("decoder", Decoder(llama()), tokens, kSelf);
  visit("untied_decoder",
        Decoder(DecoderOptions(V, plain_block(), 1).positions(learned).tied_head(false)), tokens,
        kSelf);
  visit("text_encoder",
        TextEncoder(TextEncoderOptions(V, EncoderOptions(plain_block(), 1))
                        .positions(learned)
                        .type_vocab_size(2)
                        .embedding_norm(true)),
        tokens, kPadded);
  visit("image_encoder", ImageEncoder(ImageEncoderOptions(4, 2, EncoderOptions(plain_block(), 1))),
        numbers({B, 3, 4, 4}), kSelf);
}

/// visit(name, module, x, call): call(module, x) is the output.
template <typename Visit>
void visit_modules_of_0_2(const Visit& visit) {
  visit_attentions(visit);
  visit_layers(visit);
  visit_blocks(visit);
  visit_models(visit);
}

}  // namespace heed::compatibility
