// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <heed/group_query_attention.h>
#include <heed/kv_cache.h>
#include <heed/quantize.h>
#include <torch/utils.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/memory.h"
#include "support/seeds.h"

namespace heed::test::of_kv_cache {
namespace {

constexpr int64_t B = 2, E = 32, H = 4, G = 2, D = 8;

TEST(KVCache, TruncatesReordersGrowsAndClones) {
  torch::manual_seed(moved(3));
  KVCache cache(KVCacheOptions(B, G, 8, D));
  const auto key = uniform({B, G, 8, D}, at::kFloat), value = uniform({B, G, 8, D}, at::kFloat);
  cache.append(key, value, {8, 5});
  cache.truncate(6);
  EXPECT_EQ(cache.lengths(), std::vector<int64_t>({6, 5}));
  EXPECT_TRUE(is_close(cache.keys()[0], key[0].narrow(1, 0, 6), 0.0));

  const auto copy = cache.clone();
  cache.reorder(at::tensor({1, 0}, at::kLong));
  EXPECT_EQ(cache.lengths(), std::vector<int64_t>({5, 6}));
  EXPECT_TRUE(is_close(cache.keys()[1], key[0].narrow(1, 0, 6), 0.0));
  EXPECT_TRUE(is_close(cache.values()[0].narrow(1, 0, 5), value[1].narrow(1, 0, 5), 0.0));
  EXPECT_EQ(copy.lengths(), std::vector<int64_t>({6, 5}));
  EXPECT_TRUE(is_close(copy.keys()[0], key[0].narrow(1, 0, 6), 0.0));
  cache.reorder(at::tensor({0, 0}, at::kLong));
  EXPECT_EQ(cache.lengths(), std::vector<int64_t>({5, 5}));

  cache.grow(13);
  cache.append(key, value);
  EXPECT_TRUE(is_close(cache.keys()[1].narrow(1, 5, 8), key[1], 0.0));
  EXPECT_TRUE(is_close(cache.values()[1].narrow(1, 0, 5), value[1].narrow(1, 0, 5), 0.0));
  EXPECT_TRUE(is_close(cache.next_positions(2), at::tensor({13, 14}, at::kLong), 0.0));

  cache.reset();
  EXPECT_EQ(cache.keys().size(2), 0);
  EXPECT_EQ(cache.lengths(), std::vector<int64_t>({0, 0}));
}

KVCache make_fixed(int64_t capacity, at::Device device = at::kCPU) {
  return KVCache(KVCacheOptions(B, G, capacity, D).fixed_shapes(true).device(device));
}

TEST(KVCache, FixedShapesHoldTheSameKeys) {
  torch::manual_seed(moved(3));
  for (const auto device : devices()) {
    const auto key = uniform({B, G, 5, D}, device), value = uniform({B, G, 5, D}, device);
    auto fixed = make_fixed(8, device);
    KVCache other(KVCacheOptions(B, G, 8, D).device(device));
    const auto expect_same = [&] {
      const auto lengths = other.lengths();
      EXPECT_EQ(fixed.lengths(), lengths);
      EXPECT_EQ(fixed.keys().size(2), fixed.options().capacity());
      for (int64_t b = 0; b < B; ++b) {
        const auto same = [&](const at::Tensor& all, const at::Tensor& stored) {
          return all[b].narrow(1, 0, lengths[b]).equal(stored[b].narrow(1, 0, lengths[b]));
        };
        EXPECT_TRUE(same(fixed.keys(), other.keys()));
        EXPECT_TRUE(same(fixed.values(), other.values()));
      }
      EXPECT_TRUE(fixed.key_lengths().cpu().equal(at::tensor(lengths)));
      EXPECT_TRUE(
          fixed.next_positions(2).cpu().equal(other.next_positions(2).expand({B, 2}).cpu()));
      const auto stored = other.keys().size(2);
      const auto mask = other.mask(2);
      if (!mask.defined()) return;
      EXPECT_TRUE(fixed.mask(2).narrow(3, 0, stored).cpu().equal(mask.cpu()));
      EXPECT_TRUE(fixed.distances().narrow(3, 0, stored).cpu().equal(other.distances().cpu()));
    };
    const auto both = [&](const auto& change) {
      change(fixed);
      change(other);
      expect_same();
    };
    both([&](KVCache& cache) { cache.append(key, value, {5, 2}); });
    both([&](KVCache& cache) { cache.append(key.narrow(2, 0, 1), value.narrow(2, 0, 1)); });
    // Padding of sequence 0 would stand beyond the capacity.
    both([&](KVCache& cache) { cache.append(key, value, {2, 5}); });
    both([&](KVCache& cache) { cache.truncate(6); });
    both([&](KVCache& cache) {
      cache.reorder(at::tensor({1, 0}, at::device(device).dtype(at::kLong)));
    });
    both([&](KVCache& cache) { cache = cache.clone(); });
    both([&](KVCache& cache) { cache.grow(13); });
    both([&](KVCache& cache) { cache.append(key, value, {1, 4}); });
    both([&](KVCache& cache) { cache.reset(); });
  }
}

TEST(KVCache, FixedShapesRefuseWhatDoesNotFit) {
  EXPECT_ERROR("KVCache: window (3) must be absent with fixed_shapes",
               KVCache{KVCacheOptions(B, G, 4, D).window(3).fixed_shapes(true)});
  auto cache = make_fixed(4);
  const auto key = at::ones({B, G, 3, D});
  cache.append(key, key, {3, 1});
  cache.append(key, key, {1, 3});
  EXPECT_ERROR(
      "KVCache::append: counts[1] (1) must fit beside the 4 keys that stay, within capacity (4); "
      "see KVCache::grow",
      cache.append(key, key, {0, 1}));
  EXPECT_EQ(cache.lengths(), std::vector<int64_t>({4, 4}));
}

TEST(KVCache, AppendingAllocatesNothing) {
  KVCache cache(KVCacheOptions(B, G, 4096, D));
  const auto key = at::ones({B, G, 1, D});
  const AllocationCounter counter;
  for (int i = 0; i < 100; ++i) cache.append(key, key);
  EXPECT_EQ(counter.peak(), 0);
}

TEST(KVCache, RefusesWhatDoesNotFitAndStaysAsItWas) {
  EXPECT_ERROR("KVCache: batch (0) must be at least 1", KVCache{KVCacheOptions(0, G, 4, D)});
  EXPECT_ERROR("KVCache: capacity (4) must be at least window (5)",
               KVCache{KVCacheOptions(B, G, 4, D).window(5)});
  KVCache cache(KVCacheOptions(B, G, 4, D));
  const auto key = at::ones({B, G, 3, D});
  cache.append(key, key);
  const auto append = [&](const at::Tensor& k, const at::Tensor& v, at::IntArrayRef counts = {}) {
    return value_error([&] { cache.append(k, v, counts); });
  };
  EXPECT_EQ(append(key, key),
            "KVCache::append: key dim 2 (3) must fit beside the 3 keys that stay, within capacity "
            "(4); see KVCache::grow");
  EXPECT_EQ(append(key, key, {1, 2}),
            "KVCache::append: counts[1] (2) must fit beside the 3 keys that stay, within capacity "
            "(4); see KVCache::grow");
  EXPECT_EQ(append(at::ones({B, H, 1, D}), key),
            "KVCache::append: key dim 1 (4) must equal cache dim 1 (2); cache [2, 2, 4, 8], "
            "key [2, 4, 1, 8]");
  EXPECT_EQ(append(key, at::ones({B, G, 1, D})),
            "KVCache::append: value dim 2 (1) must equal key dim 2 (3); key [2, 2, 3, 8], "
            "value [2, 2, 1, 8]");
  EXPECT_EQ(append(key.to(at::kHalf), key),
            "KVCache::append: key dtype (Half) must equal cache dtype (Float)");
  EXPECT_EQ(append(key, key, {1}), "KVCache::append: counts size (1) must equal batch (2)");
  EXPECT_EQ(append(key, key, {1, 4}),
            "KVCache::append: counts[1] (4) must be at least 0 and at most key dim 2 (3)");
  EXPECT_EQ(append(at::ones({B, G, 1, D}).requires_grad_(), key.narrow(2, 0, 1)),
            "KVCache::append: key must not require grad: a cache holds no gradients; use "
            "torch::NoGradGuard");
  EXPECT_EQ(cache.lengths(), std::vector<int64_t>({3, 3}));

  EXPECT_ERROR("KVCache::reorder: indices[1] (2) must be at least 0 and below batch (2)",
               cache.reorder(at::tensor({0, 2}, at::kLong)));
  EXPECT_ERROR("KVCache::reorder: indices must be int64 [2]",
               cache.reorder(at::tensor({0}, at::kLong)));
  EXPECT_ERROR("KVCache::grow: capacity (3) must be at least the present one (4)", cache.grow(3));
  EXPECT_ERROR("KVCache::truncate: length (-1) must be at least 0", cache.truncate(-1));

  KVCache sliding(KVCacheOptions(B, G, 4, D).window(2));
  for (int i = 0; i < 4; ++i) sliding.append(key.narrow(2, 0, 2), key.narrow(2, 0, 2));
  EXPECT_ERROR(
      "KVCache::truncate: length (3) must leave the window (2) its keys; those before 5 have been "
      "evicted",
      sliding.truncate(3));
  GroupQueryAttention module(GroupQueryAttentionOptions(E, H, G).window(3));
  const at::NoGradGuard no_grad;
  EXPECT_ERROR("GroupQueryAttention: cache window (2) must be at least the module's (3)",
               module->forward_cached(at::ones({B, 1, E}), sliding));
  EXPECT_ERROR(
      "GroupQueryAttention: rotary head_dim (32) must equal the module's head dim (8)",
      GroupQueryAttention{GroupQueryAttentionOptions(E, H, G).rotary(RotaryEmbeddingOptions(E))});
}

/// A sequence is cut back, and another takes its place.
TEST(KVCache, TruncatesOneSequence) {
  torch::manual_seed(moved(3));
  for (const auto device : devices()) {
    const auto key = uniform({B, G, 5, D}, device), other = uniform({B, G, 5, D}, device);
    for (const bool fixed : {false, true}) {
      const auto options = KVCacheOptions(B, G, 8, D).device(device);
      KVCache cache(KVCacheOptions(options).fixed_shapes(fixed));
      cache.append(key, key, {5, 4});
      cache.truncate(1, 2);
      EXPECT_EQ(cache.lengths(), std::vector<int64_t>({5, 2}));
      EXPECT_ERROR("KVCache::truncate: sequence (2) must be at least 0 and below batch (2)",
                   cache.truncate(2, 0));
      EXPECT_ERROR("KVCache::truncate: length (-1) must be at least 0", cache.truncate(1, -1));
      cache.truncate(1, 0);
      cache.append(other, other, {2, 5});
      EXPECT_EQ(cache.lengths(), std::vector<int64_t>({7, 5}));
      EXPECT_TRUE(cache.keys()[0].narrow(1, 0, 5).equal(key[0]));
      EXPECT_TRUE(cache.values()[1].narrow(1, 0, 5).equal(other[1]));
    }
  }
}

/// A query at position 0 sees no key but its own.
TEST(KVCache, TruncatesToNothingAfterEviction) {
  KVCache cache(KVCacheOptions(B, G, 4, D).window(3));
  const auto keys = uniform({B, G, 9, D}, at::kFloat);
  for (const auto& part : keys.split(1, 2)) cache.append(part, part);
  cache.truncate(0);
  EXPECT_EQ(cache.lengths(), std::vector<int64_t>({0, 0}));
  cache.append(keys.narrow(2, 0, 2), keys.narrow(2, 0, 2));
  EXPECT_EQ(cache.lengths(), std::vector<int64_t>({2, 2}));
  EXPECT_TRUE(cache.keys().equal(keys.narrow(2, 0, 2)));
  // The last position whose window is still there, and the one before.
  for (const auto& part : keys.narrow(2, 2, 7).split(1, 2)) cache.append(part, part);
  cache.truncate(9);
  EXPECT_ERROR(
      "KVCache::truncate: length (7) must leave the window (3) its keys; those before 6 have been "
      "evicted",
      cache.truncate(7));
  cache.truncate(8);
  EXPECT_EQ(cache.lengths(), std::vector<int64_t>({8, 8}));
  EXPECT_TRUE(cache.keys().narrow(2, cache.keys().size(2) - 2, 2).equal(keys.narrow(2, 6, 2)));
}

/// One token at a time, then cut back to every length: the window - 1 keys before the next token
/// are there, or the cut is refused.
TEST(KVCache, TruncatesWhereverTheWindowIsStillThere) {
  constexpr int64_t kTokens = 9;
  const auto keys = uniform({B, G, kTokens, D}, at::kFloat);
  for (const int64_t window : {1, 2, 3, 4}) {
    KVCache full(KVCacheOptions(B, G, window + 1, D).window(window));
    for (const auto& part : keys.split(1, 2)) full.append(part, part);
    const auto dropped = kTokens - full.keys().size(2);
    for (int64_t length = 0; length <= kTokens; ++length) {
      const auto name = "window " + std::to_string(window) + ", length " + std::to_string(length);
      const auto needed = std::min(window - 1, length);
      auto cache = full.clone();
      if (needed > 0 && length - needed < dropped) {
        EXPECT_THROW(cache.truncate(length), c10::ValueError) << name;
        EXPECT_TRUE(cache.keys().equal(full.keys())) << name;
        continue;
      }
      cache.truncate(length);
      EXPECT_EQ(cache.lengths(), std::vector<int64_t>({length, length})) << name;
      const auto left = cache.keys();
      EXPECT_TRUE(left.narrow(2, left.size(2) - needed, needed)
                      .equal(keys.narrow(2, length - needed, needed)))
          << name;
    }
  }
}

TEST(KVCache, AppendsViewsOfItself) {
  KVCache cache(KVCacheOptions(B, G, 4, D).window(3));
  const auto keys = uniform({B, G, 4, D}, at::kFloat);
  cache.append(keys, keys);
  cache.append(cache.keys().narrow(2, 0, 2), cache.values().narrow(2, 0, 2));
  EXPECT_TRUE(cache.keys().equal(at::cat({keys.narrow(2, 2, 2), keys.narrow(2, 0, 2)}, 2)));
  EXPECT_TRUE(cache.values().equal(cache.keys()));
}

TEST(KVCache, AppendsAnyLayout) {
  constexpr int64_t L = 3;
  torch::manual_seed(moved(5));
  const auto by_tokens = uniform({B, L, G, D}, at::kFloat).transpose(1, 2);
  const auto by_columns = uniform({B, G, D, L}, at::kFloat).transpose(2, 3);
  const auto expanded = uniform({1, G, 1, D}, at::kFloat).expand({B, G, L, D});
  const auto negative = at::_neg_view(uniform({B, G, L, D}, at::kFloat));
  const auto none = by_tokens.narrow(2, 0, 0);
  KVCache cache(KVCacheOptions(B, G, 4 * L, D));
  std::vector<at::Tensor> appended;
  for (const auto& heads : {by_tokens, by_columns, none, expanded, negative}) {
    const auto other = heads.flip(0);
    cache.append(heads, other);
    appended.push_back(heads);
    EXPECT_TRUE(cache.keys().equal(at::cat(appended, 2)));
    EXPECT_TRUE(cache.values()
                    .narrow(2, cache.values().size(2) - heads.size(2), heads.size(2))
                    .equal(other));
  }
}

/// Autograd must notice that keys which it has saved are overwritten.
TEST(KVCache, CountsItsChanges) {
  const auto keys = uniform({B, G, 2, D}, at::kFloat);
  KVCache cache(KVCacheOptions(B, G, 4, D));
  cache.append(keys, keys);
  const auto query = at::ones({D}).requires_grad_();
  const auto product = (query * cache.keys()).sum();
  cache.append(keys, keys);
  EXPECT_ANY_THROW(product.backward());
}

TEST(KVCache, IsWrittenToWhereverItWasMade) {
  const auto make = [] {
    const c10::InferenceMode inference;
    KVCache cache(KVCacheOptions(B, G, 4, D));
    cache.append(at::ones({B, G, 2, D}), at::ones({B, G, 2, D}));
    cache.grow(8);
    return cache;
  };
  auto cache = make();
  const at::NoGradGuard no_grad;
  cache.append(at::ones({B, G, 1, D}), at::ones({B, G, 1, D}));
  EXPECT_EQ(cache.lengths(), std::vector<int64_t>({3, 3}));
}

/// The cache holds what a cache of the numbers that int8 numbers stand for does, after the same
/// operations.
TEST(KVCache, HoldsInt8ThroughEveryOperation) {
  torch::manual_seed(moved(3));
  for (const auto device : devices()) {
    for (const bool fixed : {false, true}) {
      const auto options =
          KVCacheOptions(B, G, 12, D).value_head_dim(3).device(device).fixed_shapes(fixed);
      auto of_options = options;
      KVCache cache(of_options.dtype(at::kChar)), plain(options);
      const auto widened = [](const at::Tensor& numbers, const at::Tensor& scales) {
        return numbers.to(at::kFloat) * scales.unsqueeze(-1);
      };
      const auto append = [&](int64_t count, at::IntArrayRef counts) {
        const auto key = uniform({B, G, count, D}, device);
        const auto value = uniform({B, G, count, 3}, device);
        cache.append(key, value, counts);
        const auto [keys, key_scales] = quantize_int8(key);
        const auto [values, value_scales] = quantize_int8(value);
        plain.append(widened(keys, key_scales), widened(values, value_scales), counts);
      };
      const auto expect_equal = [&] {
        EXPECT_EQ(cache.keys().scalar_type(), at::kChar);
        EXPECT_TRUE(is_close(widened(cache.keys(), cache.key_scales()), plain.keys(), 0.0));
        EXPECT_TRUE(is_close(widened(cache.values(), cache.value_scales()), plain.values(), 0.0));
        EXPECT_EQ(cache.lengths(), plain.lengths());
      };
      const auto both = [&](const auto& change) {
        change(cache);
        change(plain);
        expect_equal();
      };
      append(4, {4, 2});
      expect_equal();
      append(3, {});
      both([](KVCache& each) { each.truncate(1, 4); });
      both([&](KVCache& each) { each.reorder(at::tensor({1, 0}, at::kLong).to(device)); });
      both([](KVCache& each) { each.grow(20); });
      append(9, {});
      both([](KVCache& each) { each = each.clone(); });
    }
  }
  KVCache windowed(KVCacheOptions(B, G, 6, D).window(4).dtype(at::kChar));
  KVCache plain(KVCacheOptions(B, G, 6, D).window(4));
  for (int64_t i = 0; i < 10; ++i) {
    const auto heads = uniform({B, G, 2, D}, at::kFloat);
    windowed.append(heads, heads);
    const auto [numbers, scales] = quantize_int8(heads);
    plain.append(numbers * scales.unsqueeze(-1), numbers * scales.unsqueeze(-1));
    EXPECT_TRUE(is_close(windowed.keys() * windowed.key_scales().unsqueeze(-1), plain.keys(), 0.0));
  }
}

}  // namespace
}  // namespace heed::test::of_kv_cache
