#include <gtest/gtest.h>
#include <heed/attend_options.h>
#include <heed/attention.h>
#include <heed/decoder.h>
#include <heed/differential_attention.h>
#include <heed/feed_forward.h>
#include <heed/grad_scaler.h>
#include <heed/group_query_attention.h>
#include <heed/image_encoder.h>
#include <heed/kv_cache.h>
#include <heed/latent_attention.h>
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
#include <heed/text_encoder.h>
#include <heed/transformer.h>

#include <optional>
#include <type_traits>
#include <vector>

// A bool is no number: neither setters nor constructors turn it into one. All of this is checked
// when it is compiled.

namespace heed::test {
namespace {

/// That option `name` takes numbers, and no bool.
#define EXPECT_NUMBER(Options, name)                                                      \
  do {                                                                                    \
    constexpr auto set = [](auto& options, auto value) -> decltype(options.name(value)) { \
      return options.name(value);                                                         \
    };                                                                                    \
    using Set = decltype(set);                                                            \
    static_assert(std::is_invocable_v<Set, Options&, int>, #Options "::" #name);          \
    static_assert(!std::is_invocable_v<Set, Options&, bool>, #Options "::" #name);        \
  } while (false)

/// Whether a class is made of such arguments.
template <typename Class, typename... Arguments>
constexpr bool kMade = std::is_constructible_v<Class, Arguments...>;

TEST(NumberOptions, OfAttentionTakeNoBool) {
  EXPECT_NUMBER(AttendOptions, window);
  EXPECT_NUMBER(AttendOptions, dropout);
  EXPECT_NUMBER(AttendOptions, scale);
  EXPECT_NUMBER(AttendOptions, softcap);
  EXPECT_NUMBER(AttentionOptions, emb_dim);
  EXPECT_NUMBER(AttentionOptions, dropout);
  EXPECT_NUMBER(DifferentialAttentionOptions, emb_dim);
  EXPECT_NUMBER(DifferentialAttentionOptions, head_num);
  EXPECT_NUMBER(DifferentialAttentionOptions, layer);
  EXPECT_NUMBER(DifferentialAttentionOptions, dropout);
  EXPECT_NUMBER(DifferentialAttentionOptions, window);
  EXPECT_NUMBER(GroupQueryAttentionOptions, head_num);
  EXPECT_NUMBER(GroupQueryAttentionOptions, group_num);
  EXPECT_NUMBER(LatentAttentionOptions, emb_dim);
  EXPECT_NUMBER(LatentAttentionOptions, head_num);
  EXPECT_NUMBER(LatentAttentionOptions, key_rank);
  EXPECT_NUMBER(LatentAttentionOptions, query_rank);
  EXPECT_NUMBER(LatentAttentionOptions, plain_head_dim);
  EXPECT_NUMBER(LatentAttentionOptions, rotary_head_dim);
  EXPECT_NUMBER(LatentAttentionOptions, value_head_dim);
  EXPECT_NUMBER(LatentAttentionOptions, scale);
  EXPECT_NUMBER(LatentAttentionOptions, dropout);
  EXPECT_NUMBER(LatentAttentionOptions, norm_eps);
  EXPECT_NUMBER(MultiHeadAttentionOptions, head_nums);
  EXPECT_NUMBER(MultiHeadAttentionOptions, emb_dim);
  EXPECT_NUMBER(MultiHeadAttentionOptions, dropout);
  EXPECT_NUMBER(MultiHeadAttentionOptions, key_emb_dim);
  EXPECT_NUMBER(MultiHeadAttentionOptions, value_emb_dim);
  EXPECT_NUMBER(MultiHeadAttentionOptions, head_dim);
  EXPECT_NUMBER(MultiHeadAttentionOptions, value_head_dim);
  EXPECT_NUMBER(MultiHeadAttentionOptions, scale);
  EXPECT_NUMBER(MultiHeadAttentionOptions, window);
  EXPECT_NUMBER(MultiHeadAttentionOptions, softcap);
  EXPECT_NUMBER(ResidualAttentionOptions, dropout);
  EXPECT_NUMBER(ResidualAttentionOptions, eps);
  EXPECT_NUMBER(ScaledDotProductAttentionOptions, temperature);
  EXPECT_NUMBER(ScaledDotProductAttentionOptions, dropout);
  EXPECT_NUMBER(SelfAttentionOptions, embed_size);
  EXPECT_NUMBER(SelfAttentionOptions, heads);
}

TEST(NumberOptions, OfLayersAndCachesTakeNoBool) {
  EXPECT_NUMBER(FeedForwardOptions, emb_dim);
  EXPECT_NUMBER(FeedForwardOptions, hidden_dim);
  EXPECT_NUMBER(FeedForwardOptions, dropout);
  EXPECT_NUMBER(NormOptions, dim);
  EXPECT_NUMBER(NormOptions, eps);
  EXPECT_NUMBER(QkNormOptions, eps);
  EXPECT_NUMBER(PositionEmbeddingOptions, emb_dim);
  EXPECT_NUMBER(PositionEmbeddingOptions, max_length);
  EXPECT_NUMBER(LinearScaling, factor);
  EXPECT_NUMBER(NtkScaling, factor);
  EXPECT_NUMBER(NtkScaling, original_length);
  EXPECT_NUMBER(YarnScaling, factor);
  EXPECT_NUMBER(YarnScaling, original_length);
  EXPECT_NUMBER(YarnScaling, beta_fast);
  EXPECT_NUMBER(YarnScaling, beta_slow);
  EXPECT_NUMBER(YarnScaling, attention_factor);
  EXPECT_NUMBER(Llama3Scaling, factor);
  EXPECT_NUMBER(Llama3Scaling, original_length);
  EXPECT_NUMBER(Llama3Scaling, low_freq_factor);
  EXPECT_NUMBER(Llama3Scaling, high_freq_factor);
  EXPECT_NUMBER(LongRopeScaling, original_length);
  EXPECT_NUMBER(LongRopeScaling, attention_factor);
  EXPECT_NUMBER(RotaryEmbeddingOptions, head_dim);
  EXPECT_NUMBER(RotaryEmbeddingOptions, rotary_dim);
  EXPECT_NUMBER(RotaryEmbeddingOptions, base);
  EXPECT_NUMBER(KVCacheOptions, batch);
  EXPECT_NUMBER(KVCacheOptions, groups);
  EXPECT_NUMBER(KVCacheOptions, capacity);
  EXPECT_NUMBER(KVCacheOptions, head_dim);
  EXPECT_NUMBER(KVCacheOptions, value_head_dim);
  EXPECT_NUMBER(KVCacheOptions, window);
  EXPECT_NUMBER(PagedKVCacheOptions, pages);
  EXPECT_NUMBER(PagedKVCacheOptions, groups);
  EXPECT_NUMBER(PagedKVCacheOptions, head_dim);
  EXPECT_NUMBER(PagedKVCacheOptions, value_head_dim);
  EXPECT_NUMBER(PagedKVCacheOptions, layers);
  EXPECT_NUMBER(PagedKVCacheOptions, page_size);
  EXPECT_NUMBER(PagedKVCacheOptions, window);
  EXPECT_NUMBER(PagedCacheOptions, layers);
  EXPECT_NUMBER(PagedCacheOptions, page_size);
}

TEST(NumberOptions, OfModelsTakeNoBool) {
  EXPECT_NUMBER(DecoderOptions, vocab_size);
  EXPECT_NUMBER(DecoderOptions, embedding_scale);
  EXPECT_NUMBER(DecoderOptions, softcap);
  EXPECT_NUMBER(DecoderOptions, dropout);
  EXPECT_NUMBER(EncoderOptions, num_layers);
  EXPECT_NUMBER(GradScalerOptions, init_scale);
  EXPECT_NUMBER(GradScalerOptions, growth_factor);
  EXPECT_NUMBER(GradScalerOptions, backoff_factor);
  EXPECT_NUMBER(GradScalerOptions, growth_interval);
  EXPECT_NUMBER(ImageEncoderOptions, image_size);
  EXPECT_NUMBER(ImageEncoderOptions, patch_size);
  EXPECT_NUMBER(ImageEncoderOptions, channels);
  EXPECT_NUMBER(ImageEncoderOptions, dropout);
  EXPECT_NUMBER(SamplingOptions, temperature);
  EXPECT_NUMBER(SamplingOptions, top_k);
  EXPECT_NUMBER(SamplingOptions, top_p);
  EXPECT_NUMBER(SamplingOptions, min_p);
  EXPECT_NUMBER(TextEncoderOptions, vocab_size);
  EXPECT_NUMBER(TextEncoderOptions, padding_token);
  EXPECT_NUMBER(TextEncoderOptions, type_vocab_size);
  EXPECT_NUMBER(TextEncoderOptions, dropout);
  EXPECT_NUMBER(TransformerBlockOptions, norm_eps);
  EXPECT_NUMBER(TransformerBlockOptions, dropout);
  EXPECT_NUMBER(TransformerBlockOptions, feed_forward_dropout);
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
