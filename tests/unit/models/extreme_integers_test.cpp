// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/heed.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "core/forced_path.h"
#include "support/expect.h"
#include "support/failing_memory.h"
#include "support/inputs.h"
#include "support/seeds.h"

/// Sizes, counts, lengths and positions as far out as numbers go.
namespace heed::test::of_extreme_integers {
namespace {

constexpr auto kLeast = std::numeric_limits<int64_t>::min();
constexpr auto kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t power(int n) { return int64_t{1} << n; }
constexpr int64_t kNumbers[] = {
    kLeast, kLeast + 1,    -power(32), -1,        0,         1,         2,         3,
    16,     power(31) - 1, power(31),  power(32), power(47), power(62), kMost - 1, kMost};

using Numbers = std::vector<int64_t>;

/// n - by, or n where there is no such number.
int64_t less(int64_t n, int64_t by) {
  int64_t difference;
  return __builtin_sub_overflow(n, by, &difference) ? n : difference;
}

std::string show(const Numbers& numbers) { return c10::str(at::IntArrayRef(numbers)); }

/// The call returns, or throws c10::ValueError in heed's words, or was refused an amount of memory
/// that a larger machine could have. Whether it returned.
bool expect_taken_or_refused(const std::string& name, const Numbers& numbers,
                             const std::function<void(const Numbers&)>& call) {
  SCOPED_TRACE(name + " " + show(numbers));
  constexpr size_t kSmall = size_t{1} << 24, kLargest = size_t{1} << 47;
  bool returned = false;
  std::string error;
  size_t asked = 0;
  {
    const SmallMemory memory(kSmall);
    try {
      call(numbers);
      returned = true;
    } catch (const c10::ValueError& refusal) {
      error = refusal.what_without_backtrace();
    } catch (const std::bad_alloc&) {
      asked = memory.asked();
    } catch (const std::exception& other) {
      ADD_FAILURE() << other.what();
    }
  }
  EXPECT_LE(asked, kLargest);
  if (!error.empty()) {
    EXPECT_NE(error.find(": "), std::string::npos) << error;
    EXPECT_NE(error.find(" must "), std::string::npos) << error;
    EXPECT_EQ(error.find("INTERNAL"), std::string::npos) << error;
  }
  return returned;
}

/// `call` with so many numbers: all pairs, or a few hundred draws of more, half of them 1 or 2. It
/// must return now and then, and be refused.
void try_numbers(const std::string& name, size_t count,
                 const std::function<void(const Numbers&)>& call) {
  int64_t returned = 0, tried = 0;
  const auto attempt = [&](const Numbers& numbers) {
    returned += expect_taken_or_refused(name, numbers, call) ? 1 : 0;
    ++tried;
  };
  if (count == 1) {
    for (const auto a : kNumbers) attempt({a});
  } else if (count == 2) {
    for (const auto a : kNumbers) {
      for (const auto b : kNumbers) attempt({a, b});
    }
  } else {
    std::mt19937 random(static_cast<uint32_t>(moved(count)));
    for (int i = 0; i < 600; ++i) {
      Numbers numbers;
      for (size_t n = 0; n < count; ++n) {
        const bool plain = random() % 2 == 0;
        numbers.push_back(plain ? 1 + static_cast<int64_t>(random() % 2)
                                : kNumbers[random() % std::size(kNumbers)]);
      }
      attempt(numbers);
    }
  }
  EXPECT_GT(returned, 0) << name;
  EXPECT_LT(returned, tried) << name;
}

TEST(ExtremeIntegers, AreTakenOrRefusedByAttentions) {
  torch::manual_seed(moved(1));
  try_numbers("Attention", 1, [](const auto& n) { Attention{n[0]}; });
  try_numbers("AttentionV1", 1, [](const auto& n) { AttentionV1{n[0]}; });
  try_numbers("MultiHeadAttention", 2, [](const auto& n) { MultiHeadAttention(n[0], n[1]); });
  try_numbers("MultiHeadAttention options", 7, [](const auto& n) {
    MultiHeadAttention(MultiHeadAttentionOptions(n[0], n[1])
                           .head_dim(n[2])
                           .value_head_dim(n[3])
                           .key_emb_dim(n[4])
                           .value_emb_dim(n[5])
                           .window(n[6]));
  });
  try_numbers("MultiHeadAttention norms", 2, [](const auto& n) {
    MultiHeadAttention(MultiHeadAttentionOptions(2, n[0])
                           .head_dim(n[1])
                           .qk_norm(QkNormOptions().across_heads(true))
                           .sinks(true)
                           .alibi(true));
  });
  try_numbers("GroupQueryAttention", 3, [](const auto& n) {
    GroupQueryAttention(GroupQueryAttentionOptions(n[0], n[1], n[2]).head_dim(2));
  });
  try_numbers("SelfAttention", 2, [](const auto& n) { SelfAttention(n[0], n[1]); });
  try_numbers("ResidualAttention", 2, [](const auto& n) {
    ResidualAttention(ResidualAttentionOptions(MultiHeadAttentionOptions(n[0], n[1])));
  });
  try_numbers("LatentAttention", 6, [](const auto& n) {
    LatentAttention(LatentAttentionOptions(n[0], n[1], n[2])
                        .plain_head_dim(n[3])
                        .rotary_head_dim(n[4])
                        .value_head_dim(n[5])
                        .query_rank(n[2]));
  });
  try_numbers("DifferentialAttention", 3, [](const auto& n) {
    DifferentialAttention(DifferentialAttentionOptions(n[0], n[1]).layer(n[2]).window(n[2]));
  });
}

TEST(ExtremeIntegers, AreTakenOrRefusedByLayersAndModels) {
  torch::manual_seed(moved(1));
  try_numbers("Norm", 1, [](const auto& n) { Norm(NormOptions(n[0])); });
  try_numbers("FeedForward", 1, [](const auto& n) { FeedForward(FeedForwardOptions(n[0])); });
  try_numbers("FeedForward, gated", 1, [](const auto& n) {
    FeedForward(FeedForwardOptions(n[0]).activation(Activation::swiglu));
  });
  try_numbers("FeedForward, hidden", 2,
              [](const auto& n) { FeedForward(FeedForwardOptions(n[0]).hidden_dim(n[1])); });
  try_numbers("PositionEmbedding", 2, [](const auto& n) {
    PositionEmbedding(PositionEmbeddingOptions(n[0]).kind(PositionKind::learned).max_length(n[1]));
  });
  try_numbers("RotaryEmbedding", 2, [](const auto& n) {
    RotaryEmbedding(RotaryEmbeddingOptions(n[0]).rotary_dim(n[1]));
  });
  try_numbers("RotaryEmbedding, sections", 3, [](const auto& n) {
    RotaryEmbedding(RotaryEmbeddingOptions(8).sections({n[0], n[1], n[2]}));
  });
  const RotaryEmbedding rotary(RotaryEmbeddingOptions(4));
  try_numbers("angles", 2, [&](const auto& n) { rotary->angles(n[0], n[1], at::kFloat); });
  const TransformerBlockOptions block(GroupQueryAttentionOptions(2, 1, 1));
  try_numbers("Encoder", 1, [&](const auto& n) { Encoder(EncoderOptions(block, n[0])); });
  try_numbers("Decoder", 1, [&](const auto& n) {
    auto causal = block;
    causal.attention().causal(true);
    Decoder(DecoderOptions(n[0], causal, 1));
  });
  try_numbers("TextEncoder", 4, [&](const auto& n) {
    TextEncoder(TextEncoderOptions(n[0], EncoderOptions(block, 1))
                    .padding_token(n[1])
                    .type_vocab_size(n[2])
                    .embedding_dim(n[3]));
  });
  try_numbers("HeadTransform", 1, [](const auto& n) { HeadTransform(HeadTransformOptions(n[0])); });
  const TextEncoderOptions encoder(8, EncoderOptions(block, 1));
  try_numbers("SequenceClassifier", 2, [&](const auto& n) {
    SequenceClassifier(SequenceClassifierOptions(encoder, n[0]).padding_token(n[1]));
  });
  try_numbers("TokenClassifier", 1,
              [&](const auto& n) { TokenClassifier(TokenClassifierOptions(encoder, n[0])); });
  try_numbers("FrameEncoder", 2, [&](const auto& n) {
    FrameEncoder(FrameEncoderOptions(n[0], n[1], EncoderOptions(block, 1)));
  });
  try_numbers("TextEncoder", 2, [&](const auto& n) {
    TextEncoder(
        TextEncoderOptions(encoder).pooling(TextPooling::end).end_token(n[0]).projection_dim(n[1]));
  });
  try_numbers("ImageEncoder", 3, [&](const auto& n) {
    ImageEncoder(ImageEncoderOptions(n[0], n[1], EncoderOptions(block, 1)).channels(n[2]));
  });
  try_numbers("ImageEncoder", 4, [&](const auto& n) {
    ImageEncoder(ImageEncoderOptions(n[0], n[1], EncoderOptions(block, 1))
                     .crop(true)
                     .register_num(n[2])
                     .projection_dim(n[3]));
  });
  try_numbers("GradScaler", 1,
              [](const auto& n) { GradScaler(GradScalerOptions().growth_interval(n[0])); });
}

/// Distances that no int64 holds are as far as any.
TEST(ExtremeIntegers, AreRelativePositions) {
  torch::manual_seed(moved(2));
  const auto heads = uniform({1, 2, 3, 4}, at::kFloat);
  const auto relative = uniform({2, 7}, at::kFloat);
  for (const auto path : {AttendPath::block, AttendPath::decode, AttendPath::math}) {
    const detail::ScopedPath in_force(path);
    const auto attended = [&](const Numbers& positions) {
      return attend(heads, heads, heads,
                    AttendOptions().relative_bias(relative).relative_positions(
                        at::tensor(positions, at::kLong)));
    };
    EXPECT_TRUE(attended({kLeast, 1, kMost}).equal(attended({-100, 1, 100}))) << to_string(path);
  }
}

TEST(ExtremeIntegers, AreTakenOrRefusedByFunctions) {
  torch::manual_seed(moved(1));
  const auto heads = uniform({1, 2, 3, 4}, at::kFloat);
  const auto rows = uniform({3, 2, 4}, at::kFloat), packed = uniform({1, 3, 4}, at::kFloat);
  try_numbers("attend", 1, [&](const auto& n) {
    attend(heads, heads, heads, AttendOptions().window(n[0]).causal(true));
    attend(heads, heads, heads, AttendOptions().window(n[0]));
  });
  try_numbers("attend, two sides", 2, [&](const auto& n) {
    const auto options = AttendOptions().left_window(n[0]).right_window(n[1]);
    attend(heads, heads, heads, options);
    attend(heads, heads, heads, AttendOptions(options).top_left(true).causal(true));
    attend(heads, heads, heads, AttendOptions(options).global_tokens(at::ones({3}, at::kBool)));
  });
  try_numbers("attend, lengths", 2, [&](const auto& n) {
    const auto of = [&](int64_t length) { return at::full({heads.size(0)}, length, at::kLong); };
    attend(heads, heads, heads, AttendOptions().query_lengths(of(n[0])).key_lengths(of(n[1])));
  });
  try_numbers("attend, a tree", 3, [&](const auto& n) {
    attend(heads, heads, heads,
           AttendOptions().causal(true).parents(
               at::tensor(Numbers{less(n[0], 2), less(n[1], 2), less(n[2], 2)}, at::kLong)));
  });
  try_numbers("attend_varlen", 2, [&](const auto& n) {
    const auto offsets = at::tensor(Numbers{0, n[0], n[1]}, at::kLong);
    attend_varlen(rows, rows, rows, offsets, offsets);
  });
  try_numbers("attend_varlen, longest", 2, [&](const auto& n) {
    const auto offsets = at::tensor(Numbers{0, 3}, at::kLong);
    attend_varlen(rows, rows, rows, offsets, offsets, n[0], n[1]);
  });
  const auto pages = uniform({2, 2, 16, 4}, at::kFloat);
  try_numbers("attend_paged", 3, [&](const auto& n) {
    attend_paged(rows, pages, pages, at::tensor(Numbers{less(n[0], 1)}, at::kLong).view({1, 1}),
                 at::tensor(Numbers{0, 3}, at::kLong),
                 at::tensor(Numbers{less(n[1], -2)}, at::kLong),
                 AttendOptions().causal(true).window(n[2]));
  });
  try_numbers("multi_head_attention", 1,
              [&](const auto& n) { multi_head_attention(packed, packed, packed, n[0]); });
  try_numbers("causal_mask", 2, [](const auto& n) { causal_mask(n[0], n[1]); });
  try_numbers("causal_mask, offset", 3, [](const auto& n) { causal_mask(n[0], n[1], n[2]); });
  try_numbers("window_mask", 3, [](const auto& n) {
    window_mask(n[0], n[1], n[2], true);
    window_mask(n[0], n[1], n[2], false);
  });
  try_numbers("padding_mask", 2, [](const auto& n) {
    padding_mask(at::tensor(Numbers{n[0], 1}, at::kLong), n[1]);
  });
  try_numbers("alibi_slopes", 1, [](const auto& n) { alibi_slopes(n[0]); });
  try_numbers("gpt_neox", 1, [](const auto& n) { name_maps::gpt_neox(n[0]); });
  try_numbers("sample", 1, [](const auto& n) {
    sample(at::ones({1, 5}), SamplingOptions().top_k(n[0]));
  });
  try_numbers("sample, with the tokens so far", 3, [](const auto& n) {
    const Numbers tokens = {1, n[0]};
    const TokenHistory history{tokens, n[1]};
    const auto options = SamplingOptions().repetition_penalty(2).end_tokens({0});
    sample(at::ones({1, 5}), SamplingOptions(options).no_repeat_ngram_size(n[2]), {}, history);
    sample(at::ones({1, 5}), SamplingOptions(options).min_new_tokens(n[2]), {}, history);
  });
  try_numbers("sample, with a bias", 1, [](const auto& n) {
    sample(at::ones({1, 5}), SamplingOptions().logit_bias({{n[0], 1.0}}));
    sample(at::ones({1, 5}), SamplingOptions().end_tokens({n[0]}));
  });
  try_numbers("linear_cross_entropy", 3, [](const auto& n) {
    linear_cross_entropy(at::ones({2, 3}), at::ones({4, 3}),
                         at::tensor(Numbers{n[0], n[1]}, at::kLong),
                         LinearCrossEntropyOptions().ignore_index(n[2]));
  });
  try_numbers("accept_draft", 2, [](const auto& n) {
    const auto tokens = at::ones({3}, at::kLong);
    accept_draft(tokens, {-1, less(n[0], 1), less(n[1], 1)}, tokens);
  });
  const MultiHeadAttention attention(4, 2);
  try_numbers("attention_cost", 3,
              [&](const auto& n) { attention_cost(*attention, n[0], n[1], n[2]); });
  const Encoder encoder(EncoderOptions(GroupQueryAttentionOptions(4, 2, 1), 1));
  try_numbers("model_cost", 2, [&](const auto& n) { model_cost(*encoder, n[0], n[1]); });
}

/// [2, 1, n, 2], of one key.
at::Tensor many(int64_t n) {
  return at::ones({2, 1, 1, 2}).expand({2, 1, std::clamp<int64_t>(n, 0, kMost / 4), 2});
}

TEST(ExtremeIntegers, AreTakenOrRefusedByAKVCache) {
  const at::NoGradGuard no_grad;
  try_numbers("KVCache", 6, [](const auto& n) {
    KVCache(KVCacheOptions(n[0], n[1], n[2], n[3]).value_head_dim(n[4]).window(n[5]));
  });
  try_numbers("KVCache, int8, fixed", 4, [](const auto& n) {
    KVCache(KVCacheOptions(n[0], n[1], n[2], n[3]).dtype(at::kChar).fixed_shapes(true));
  });
  const MultiHeadAttention attention(4, 2);
  try_numbers("make_cache", 2, [&](const auto& n) { attention->make_cache(n[0], n[1]); });
  for (const bool fixed : {false, true}) {
    const auto options = KVCacheOptions(2, 1, 8, 2).fixed_shapes(fixed);
    const auto on = [&](const std::string& name, size_t count, const auto& call) {
      try_numbers(name, count, [&](const Numbers& n) {
        KVCache cache(options);
        cache.append(many(3), many(3), {3, 1});
        const auto before = cache.lengths();
        try {
          call(cache, n);
        } catch (const std::exception&) {
          if (cache.lengths() != before) ADD_FAILURE() << name << " changes the cache";
          throw;
        }
      });
    };
    on("append", 1, [](KVCache& cache, const Numbers& n) { cache.append(many(n[0]), many(n[0])); });
    on("append, counts", 3, [](KVCache& cache, const Numbers& n) {
      cache.append(many(n[2]), many(n[2]), {n[0], n[1]});
    });
    on("truncate", 1, [](KVCache& cache, const Numbers& n) { cache.truncate(n[0]); });
    on("truncate one", 2, [](KVCache& cache, const Numbers& n) { cache.truncate(n[0], n[1]); });
    on("reorder", 2,
       [](KVCache& cache, const Numbers& n) { cache.reorder(at::tensor(n, at::kLong)); });
    on("grow", 1, [](KVCache& cache, const Numbers& n) { cache.grow(n[0]); });
    on("next_positions", 1, [](KVCache& cache, const Numbers& n) { cache.next_positions(n[0]); });
    on("mask", 1, [](KVCache& cache, const Numbers& n) { cache.mask(n[0]); });
  }
  const auto sliding = KVCacheOptions(2, 1, 8, 2).window(3);
  try_numbers("append, window", 3, [&](const Numbers& n) {
    KVCache cache(sliding);
    cache.append(many(7), many(7));
    cache.append(many(n[2]), many(n[2]), {n[0], n[1]});
  });
}

TEST(ExtremeIntegers, AreTakenOrRefusedByAPagedKVCache) {
  const at::NoGradGuard no_grad;
  try_numbers("PagedKVCache", 7, [](const auto& n) {
    PagedKVCache(PagedKVCacheOptions(n[0], n[1], n[2])
                     .value_head_dim(n[3])
                     .layers(n[4])
                     .page_size(n[5] <= 2 ? 16 : n[5])
                     .window(n[6]));
  });
  const Encoder encoder(
      EncoderOptions(TransformerBlockOptions(GroupQueryAttentionOptions(2, 1, 1).causal(true)), 1));
  try_numbers("make_paged_cache", 3, [&](const auto& n) {
    encoder->make_paged_cache(n[0],
                              PagedCacheOptions().page_size(n[1] <= 2 ? 16 : n[1]).layers(n[2]));
  });
  try_numbers("beam_search", 5, [](const auto& n) {
    const Decoder decoder(DecoderOptions(2, GroupQueryAttentionOptions(2, 1, 1), 1));
    auto options = BeamSearchOptions(n[0], n[1]).num_return_sequences(n[2]).min_new_tokens(n[3]);
    options.cache().page_size(n[4] <= 2 ? 16 : n[4]);
    beam_search(decoder, std::vector<Numbers>{{1, 1}}, options.end_tokens({0, 1}));
  });
  try_numbers("memory_rows", 2, [](const auto& n) {
    const at::NoGradGuard no_grad;
    GroupQueryAttention attention(2, 1, 1);
    auto cache = attention->make_paged_cache(2);
    auto step = cache.append({cache.add(), cache.add()}, {1, 1});
    const auto memory = at::ones({3, 4, 2});
    attention->forward_cached(at::ones({1, 2, 2}), step.memory_rows(n),
                              attention->project_memory(memory, memory));
  });
  for (const auto& window : {std::optional<int64_t>(), std::optional<int64_t>(1)}) {
    const auto on = [&](const std::string& name, size_t count, const auto& call) {
      try_numbers(name, count, [&](const Numbers& n) {
        PagedKVCache cache(PagedKVCacheOptions(4, 1, 2).page_size(16).window(window));
        cache.append({cache.add()}, {20});
        cache.append({cache.add()}, {3});  // names 0 and 1
        try {
          call(cache, n);
        } catch (const std::exception&) {
          if (cache.pages_free() != 1 || cache.length(0) != 20 || cache.length(1) != 3) {
            ADD_FAILURE() << name << " changes the cache";
          }
          throw;
        }
      });
    };
    on("append", 2, [](PagedKVCache& cache, const Numbers& n) { cache.append({0, 1}, n); });
    on("append, a tree", 3, [](PagedKVCache& cache, const Numbers& n) {
      cache.append({1}, {n[0]}, {less(n[1], 2), less(n[2], 2)});
    });
    on("append, names", 2, [](PagedKVCache& cache, const Numbers& n) { cache.append(n, {1, 1}); });
    on("pages_needed", 2, [](PagedKVCache& cache, const Numbers& n) {
      if (cache.pages_needed({0, 1}, n) < -2) ADD_FAILURE() << "pages_needed " << show(n);
    });
    on("truncate", 2, [](PagedKVCache& cache, const Numbers& n) { cache.truncate(n[0], n[1]); });
    on("fork", 1, [](PagedKVCache& cache, const Numbers& n) { cache.fork(n[0]); });
    on("remove", 1, [](PagedKVCache& cache, const Numbers& n) { cache.remove(n[0]); });
    on("length", 1, [](PagedKVCache& cache, const Numbers& n) { cache.length(n[0]); });
    on("keep", 2, [](PagedKVCache& cache, const Numbers& n) { cache.keep(1, n); });
  }
  try_numbers("write", 1, [](const Numbers& n) {
    PagedKVCache cache(PagedKVCacheOptions(4, 1, 2).page_size(16).layers(2));
    auto step = cache.append({cache.add()}, {1});
    step.write(at::ones({1, 1, 2}), at::ones({1, 1, 2}), n[0]);
  });
  try_numbers("first_layer", 1, [&](const Numbers& n) {
    auto cache = encoder->make_paged_cache(2, PagedCacheOptions().layers(3));
    auto step = cache.append({cache.add()}, {1});
    encoder->forward_cached(at::ones({1, 1, 2}), step, n[0]);
  });
}

TEST(ExtremeIntegers, CountPagesWithoutOverflow) {
  PagedKVCache cache(PagedKVCacheOptions(4, 1, 2).page_size(16));
  const auto first = cache.add(), second = cache.add();
  EXPECT_EQ(cache.pages_needed({first}, {kMost}), int64_t{1} << 59);
  EXPECT_ERROR(
      "PagedKVCache::append: free pages (4) must be at least 576460752303423488 for these tokens: "
      "remove or truncate sequences, or append to fewer",
      cache.append({first}, {kMost}));
  cache.append({first}, {17});
  EXPECT_EQ(cache.pages_needed({first, second}, {kMost, kMost}), (int64_t{1} << 60) - 2);
  EXPECT_ERROR("KVCache: memory [1, 1, 9223372036854775807, 2] must take at most 2^47 bytes",
               KVCache(KVCacheOptions(1, 1, kMost, 2)));
  EXPECT_ERROR("Linear: weight [9223372036854775807, 4] must take at most 2^47 bytes",
               MultiHeadAttention(MultiHeadAttentionOptions(4, 4).head_dim(kMost)));
  EXPECT_ERROR("causal_mask: key_length (-9223372036854775808) must be at least 0",
               causal_mask(0, kLeast));
}

}  // namespace
}  // namespace heed::test::of_extreme_integers
