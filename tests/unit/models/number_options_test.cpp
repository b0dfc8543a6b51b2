// SPDX-License-Identifier: BSD-3-Clause
#include <c10/util/Type.h>
#include <gtest/gtest.h>
#include <heed/attend_options.h>
#include <heed/attention.h>
#include <heed/decoder.h>
#include <heed/differential_attention.h>
#include <heed/feed_forward.h>
#include <heed/frame_encoder.h>
#include <heed/grad_scaler.h>
#include <heed/group_query_attention.h>
#include <heed/image_encoder.h>
#include <heed/kv_cache.h>
#include <heed/latent_attention.h>
#include <heed/linear_cross_entropy.h>
#include <heed/multi_head_attention.h>
#include <heed/norm.h>
#include <heed/paged_kv_cache.h>
#include <heed/position_embedding.h>
#include <heed/qk_norm.h>
#include <heed/residual_attention.h>
#include <heed/rotary_embedding.h>
#include <heed/sampling.h>
#include <heed/scaled_dot_product_attention.h>
#include <heed/self_attention.h>
#include <heed/task_heads.h>
#include <heed/text_encoder.h>
#include <heed/transformer.h>

#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

// A bool is no number: neither setters nor constructors turn it into one.

namespace heed::test {
namespace {

/// An option of any class: its name, and what sets it.
#define HEED_OPTION(name) \
  std::pair(#name, [](auto& o, auto value) -> decltype(o.name(value)) { return o.name(value); })

/// Passes where these options of a class take numbers, and no bool.
template <typename Options, typename... Setters>
void expect_numbers(const std::pair<const char*, Setters>&... options) {
  const auto expect = [](const char* name, bool takes_number, bool takes_bool) {
    EXPECT_TRUE(takes_number && !takes_bool) << c10::demangle_type<Options>() << "::" << name;
  };
  (expect(options.first, std::is_invocable_v<Setters, Options&, int>,
          std::is_invocable_v<Setters, Options&, bool>),
   ...);
}

/// Whether a class is made of such arguments.
template <typename Class, typename... Arguments>
constexpr bool kMade = std::is_constructible_v<Class, Arguments...>;

TEST(NumberOptions, OfAttentionTakeNoBool) {
  expect_numbers<AttendOptions>(HEED_OPTION(window), HEED_OPTION(dropout), HEED_OPTION(scale),
                                HEED_OPTION(softcap));
  expect_numbers<AttentionOptions>(HEED_OPTION(emb_dim), HEED_OPTION(dropout));
  expect_numbers<DifferentialAttentionOptions>(HEED_OPTION(emb_dim), HEED_OPTION(head_num),
                                               HEED_OPTION(layer), HEED_OPTION(dropout),
                                               HEED_OPTION(window));
  expect_numbers<GroupQueryAttentionOptions>(HEED_OPTION(head_num), HEED_OPTION(group_num));
  expect_numbers<LatentAttentionOptions>(
      HEED_OPTION(emb_dim), HEED_OPTION(head_num), HEED_OPTION(key_rank), HEED_OPTION(query_rank),
      HEED_OPTION(plain_head_dim), HEED_OPTION(rotary_head_dim), HEED_OPTION(value_head_dim),
      HEED_OPTION(scale), HEED_OPTION(dropout), HEED_OPTION(norm_eps));
  expect_numbers<MultiHeadAttentionOptions>(
      HEED_OPTION(head_nums), HEED_OPTION(emb_dim), HEED_OPTION(dropout), HEED_OPTION(key_emb_dim),
      HEED_OPTION(value_emb_dim), HEED_OPTION(head_dim), HEED_OPTION(value_head_dim),
      HEED_OPTION(scale), HEED_OPTION(window), HEED_OPTION(left_window), HEED_OPTION(right_window),
      HEED_OPTION(softcap));
  expect_numbers<ResidualAttentionOptions>(HEED_OPTION(dropout), HEED_OPTION(eps));
  expect_numbers<ScaledDotProductAttentionOptions>(HEED_OPTION(temperature), HEED_OPTION(dropout));
  expect_numbers<SelfAttentionOptions>(HEED_OPTION(embed_size), HEED_OPTION(heads));
}

TEST(NumberOptions, OfLayersAndCachesTakeNoBool) {
  expect_numbers<FeedForwardOptions>(HEED_OPTION(emb_dim), HEED_OPTION(hidden_dim),
                                     HEED_OPTION(dropout), HEED_OPTION(swiglu_beta),
                                     HEED_OPTION(swiglu_limit), HEED_OPTION(swiglu_offset));
  expect_numbers<LinearCrossEntropyOptions>(HEED_OPTION(ignore_index), HEED_OPTION(label_smoothing),
                                            HEED_OPTION(z_loss), HEED_OPTION(softcap));
  expect_numbers<NormOptions>(HEED_OPTION(dim), HEED_OPTION(eps));
  expect_numbers<QkNormOptions>(HEED_OPTION(eps));
  expect_numbers<PositionEmbeddingOptions>(HEED_OPTION(emb_dim), HEED_OPTION(max_length),
                                           HEED_OPTION(offset));
  expect_numbers<LinearScaling>(HEED_OPTION(factor));
  expect_numbers<NtkScaling>(HEED_OPTION(factor), HEED_OPTION(original_length));
  expect_numbers<YarnScaling>(HEED_OPTION(factor), HEED_OPTION(original_length),
                              HEED_OPTION(beta_fast), HEED_OPTION(beta_slow),
                              HEED_OPTION(attention_factor));
  expect_numbers<Llama3Scaling>(HEED_OPTION(factor), HEED_OPTION(original_length),
                                HEED_OPTION(low_freq_factor), HEED_OPTION(high_freq_factor));
  expect_numbers<LongRopeScaling>(HEED_OPTION(original_length), HEED_OPTION(attention_factor));
  expect_numbers<RotaryEmbeddingOptions>(HEED_OPTION(head_dim), HEED_OPTION(rotary_dim),
                                         HEED_OPTION(base));
  expect_numbers<KVCacheOptions>(HEED_OPTION(batch), HEED_OPTION(groups), HEED_OPTION(capacity),
                                 HEED_OPTION(head_dim), HEED_OPTION(value_head_dim),
                                 HEED_OPTION(window));
  expect_numbers<PagedKVCacheOptions>(
      HEED_OPTION(pages), HEED_OPTION(groups), HEED_OPTION(head_dim), HEED_OPTION(value_head_dim),
      HEED_OPTION(layers), HEED_OPTION(page_size), HEED_OPTION(window));
  expect_numbers<PagedCacheOptions>(HEED_OPTION(layers), HEED_OPTION(page_size));
}

TEST(NumberOptions, OfModelsTakeNoBool) {
  expect_numbers<DecoderOptions>(HEED_OPTION(vocab_size), HEED_OPTION(embedding_scale),
                                 HEED_OPTION(scores_scale), HEED_OPTION(softcap),
                                 HEED_OPTION(dropout));
  expect_numbers<EncoderOptions>(HEED_OPTION(num_layers), HEED_OPTION(final_dropout));
  expect_numbers<FrameEncoderOptions>(HEED_OPTION(mels), HEED_OPTION(positions),
                                      HEED_OPTION(dropout));
  expect_numbers<GradScalerOptions>(HEED_OPTION(init_scale), HEED_OPTION(growth_factor),
                                    HEED_OPTION(backoff_factor), HEED_OPTION(growth_interval));
  expect_numbers<HeadTransformOptions>(HEED_OPTION(emb_dim), HEED_OPTION(dropout));
  expect_numbers<SequenceClassifierOptions>(HEED_OPTION(num_labels), HEED_OPTION(padding_token),
                                            HEED_OPTION(dropout));
  expect_numbers<TokenClassifierOptions>(HEED_OPTION(num_labels), HEED_OPTION(dropout));
  expect_numbers<ImageEncoderOptions>(HEED_OPTION(image_size), HEED_OPTION(patch_size),
                                      HEED_OPTION(channels), HEED_OPTION(dropout),
                                      HEED_OPTION(register_num), HEED_OPTION(projection_dim));
  expect_numbers<AttentionPoolingOptions>(HEED_OPTION(norm_eps));
  expect_numbers<SamplingOptions>(HEED_OPTION(temperature), HEED_OPTION(top_k), HEED_OPTION(top_p),
                                  HEED_OPTION(min_p), HEED_OPTION(repetition_penalty),
                                  HEED_OPTION(presence_penalty), HEED_OPTION(frequency_penalty),
                                  HEED_OPTION(no_repeat_ngram_size), HEED_OPTION(min_new_tokens));
  expect_numbers<TextEncoderOptions>(HEED_OPTION(vocab_size), HEED_OPTION(embedding_dim),
                                     HEED_OPTION(embedding_scale), HEED_OPTION(padding_token),
                                     HEED_OPTION(type_vocab_size), HEED_OPTION(dropout),
                                     HEED_OPTION(end_token), HEED_OPTION(projection_dim));
  expect_numbers<TransformerBlockOptions>(HEED_OPTION(norm_eps), HEED_OPTION(residual_scale),
                                          HEED_OPTION(layer_scale), HEED_OPTION(skip_scale),
                                          HEED_OPTION(dropout), HEED_OPTION(feed_forward_dropout));
}

TEST(NumberOptions, TakeNoBoolInConstructors) {
  static_assert(kMade<AttentionOptions, int> && !kMade<AttentionOptions, bool>);
  static_assert(kMade<AttentionImpl, int, int> && !kMade<AttentionImpl, int, bool>);
  static_assert(kMade<AttentionV1Impl, int> && !kMade<AttentionV1Impl, bool>);
  static_assert(kMade<MultiHeadAttentionImpl, int, int, int>);
  static_assert(!kMade<MultiHeadAttentionImpl, int, int, bool>);
  static_assert(!kMade<MultiHeadAttentionOptions, int, bool>);
  static_assert(kMade<GroupQueryAttentionImpl, int, int, int>);
  static_assert(!kMade<GroupQueryAttentionImpl, int, int, bool>);
  static_assert(!kMade<GroupQueryAttentionOptions, bool, int, int>);
  static_assert(!kMade<SelfAttentionImpl, int, bool> && !kMade<SelfAttentionOptions, int, bool>);
  static_assert(!kMade<ScaledDotProductAttentionImpl, double, bool>);
  static_assert(!kMade<ScaledDotProductAttentionOptions, bool>);
  static_assert(!kMade<DifferentialAttentionOptions, int, bool>);
  static_assert(!kMade<LatentAttentionOptions, int, int, bool>);
  static_assert(kMade<NormOptions, int> && !kMade<NormOptions, bool>);
  static_assert(kMade<NormImpl, int> && !kMade<NormImpl, bool>);
  static_assert(kMade<RMSNorm, int> && !kMade<RMSNorm, bool> && !kMade<RMSNorm, int, bool>);
  static_assert(!kMade<HeadTransformOptions, bool>);
  static_assert(!kMade<SequenceClassifierOptions, TextEncoderOptions, bool>);
  static_assert(!kMade<TokenClassifierOptions, DecoderOptions, bool>);
  static_assert(!kMade<FeedForwardOptions, bool> && !kMade<PositionEmbeddingOptions, bool>);
  static_assert(!kMade<RotaryEmbeddingOptions, bool> && !kMade<LinearScaling, bool>);
  static_assert(!kMade<NtkScaling, bool> && !kMade<YarnScaling, double, bool>);
  static_assert(!kMade<Llama3Scaling, bool, int>);
  static_assert(!kMade<LongRopeScaling, std::vector<double>, std::vector<double>, bool>);
  static_assert(!kMade<KVCacheOptions, int, int, int, bool>);
  static_assert(!kMade<PagedKVCacheOptions, int, bool, int>);
  static_assert(kMade<EncoderOptions, TransformerBlockOptions, int>);
  static_assert(!kMade<EncoderOptions, TransformerBlockOptions, bool>);
  static_assert(!kMade<DecoderOptions, bool, EncoderOptions>);
  static_assert(!kMade<TextEncoderOptions, bool, EncoderOptions>);
  static_assert(!kMade<ImageEncoderOptions, int, bool, EncoderOptions>);
  static_assert(!kMade<FrameEncoderOptions, int, bool, EncoderOptions>);
  // Nor where an option converts from a number.
  static_assert(!std::is_convertible_v<bool, std::optional<RotaryEmbeddingOptions>>);
  static_assert(!std::is_convertible_v<bool, FeedForwardOptions>);
}

TEST(NumberOptions, TakeNumbersAndNothing) {
  EXPECT_EQ(AttendOptions().window(5).window(), 5);
  EXPECT_EQ(AttendOptions().window(std::nullopt).window(), std::nullopt);
  EXPECT_EQ(AttendOptions().scale(2).scale(), 2.0);
  EXPECT_EQ(MultiHeadAttention(64, 4, 0)->options.dropout(), 0.0);
  EXPECT_TRUE(AttendOptions().causal(true).causal());
}

}  // namespace
}  // namespace heed::test
