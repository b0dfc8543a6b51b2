// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>
#include <heed/group_query_attention.h>
#include <heed/kv_cache.h>
#include <heed/multi_head_attention.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test::of_module_caches {
namespace {

constexpr int64_t B = 2, E = 32, H = 4, G = 2, D = 8, L = 23;

/// Float32 throughout; sums over other lengths round differently.
constexpr double kTolerance = 1e-5;

KVCache make_cache(int64_t groups, int64_t capacity, std::optional<int64_t> window = {}) {
  return KVCache(KVCacheOptions(B, groups, capacity, D).window(window));
}

TEST(KVCache, AllChunksGiveTheNumbersOfTheWhole) {
  torch::manual_seed(moved(1));
  const at::NoGradGuard no_grad;
  const auto x = uniform({B, L, E}, at::kFloat);
  for (const bool rotary : {false, true}) {
    for (const int64_t window : {0, 1, 5}) {
      GroupQueryAttentionOptions grouped(E, H, G);
      MultiHeadAttentionOptions multi(E, H);
      grouped.causal(true);
      multi.causal(true).dropout(0.0);
      if (rotary)
        grouped.rotary(RotaryEmbeddingOptions(D)), multi.rotary(RotaryEmbeddingOptions(D));
      if (window > 0) grouped.window(window), multi.window(window);
      GroupQueryAttention grouped_module(grouped);
      MultiHeadAttention multi_module(multi);
      for (const int64_t chunk : {1, 2, 7, 23}) {
        const auto name = "rotary " + std::to_string(rotary) + ", window " +
                          std::to_string(window) + ", chunk " + std::to_string(chunk);
        auto grouped_cache = make_cache(G, L);
        EXPECT_TRUE(is_close(in_chunks(grouped_module, x, grouped_cache, chunk), grouped_module(x),
                             kTolerance))
            << name;
        auto multi_cache = make_cache(H, L);
        EXPECT_TRUE(
            is_close(in_chunks(multi_module, x, multi_cache, chunk), multi_module(x), kTolerance))
            << name;
        if (window == 0) continue;
        // Room for the window alone: old keys go.
        auto sliding = make_cache(G, window - 1 + chunk, window);
        EXPECT_TRUE(
            is_close(in_chunks(grouped_module, x, sliding, chunk), grouped_module(x), kTolerance))
            << name;
        EXPECT_EQ(sliding.lengths(), std::vector<int64_t>({L, L}));
      }
    }
  }
}

/// An option that the attention modules may be asked for besides rotary embedding and window.
using Change = void (*)(GroupQueryAttentionOptions&);
const std::vector<std::pair<const char*, Change>> kChanges = {
    {"qk_norm before rotary",
     [](GroupQueryAttentionOptions& o) {
       o.qk_norm(QkNormOptions()).rotary(RotaryEmbeddingOptions(D));
     }},
    {"qk_norm by layer_norm after rotary",
     [](GroupQueryAttentionOptions& o) {
       o.qk_norm(QkNormOptions().kind(NormKind::layer_norm).after_rotary(true))
           .rotary(RotaryEmbeddingOptions(D));
     }},
    {"alibi", [](GroupQueryAttentionOptions& o) { o.alibi(true); }},
    {"sinks", [](GroupQueryAttentionOptions& o) { o.sinks(true); }},
    {"softcap", [](GroupQueryAttentionOptions& o) { o.softcap(0.5); }},
    {"head_dim, no bias",
     [](GroupQueryAttentionOptions& o) { o.input_bias(false).output_bias(false).scale(0.7); }},
    {"all",
     [](GroupQueryAttentionOptions& o) {
       o.qk_norm(QkNormOptions()).rotary(RotaryEmbeddingOptions(D)).alibi(true).sinks(true);
       o.softcap(0.5).window(6);
     }},
};

GroupQueryAttention changed_module(Change change) {
  auto options = GroupQueryAttentionOptions(E, H, G).head_dim(D).causal(true);
  change(options);
  GroupQueryAttention module(options);
  const at::NoGradGuard no_grad;
  // Neither norms nor sinks as they are at first.
  for (const auto& parameter : module->parameters())
    parameter.add_(0.3 * at::randn_like(parameter));
  return module;
}

TEST(KVCache, EveryOptionGivesTheNumbersOfTheWholeInChunks) {
  torch::manual_seed(moved(5));
  const at::NoGradGuard no_grad;
  const auto x = uniform({B, L, E}, at::kFloat);
  for (const auto& [name, change] : kChanges) {
    auto module = changed_module(change);
    const auto whole = module(x);
    for (const int64_t chunk : {1, 7, 23}) {
      auto cache = make_cache(G, L);
      EXPECT_TRUE(is_close(in_chunks(module, x, cache, chunk), whole, kTolerance))
          << name << ", chunk " << chunk;
    }
  }
}

TEST(KVCache, EveryOptionTakesDifferentLengths) {
  torch::manual_seed(moved(6));
  const at::NoGradGuard no_grad;
  const auto x = uniform({B, 12, E}, at::kFloat);
  for (const auto& [name, change] : kChanges) {
    auto module = changed_module(change);
    auto cache = make_cache(G, 12);
    const auto prompt = module->forward_cached(x.narrow(1, 0, 9), cache, {9, 4});
    const auto token =
        at::cat({x.narrow(0, 0, 1).narrow(1, 9, 1), x.narrow(0, 1, 1).narrow(1, 4, 1)});
    const auto next = module->forward_cached(token, cache);
    const auto whole = module(x);
    EXPECT_TRUE(is_close(prompt[0], whole[0].narrow(0, 0, 9), kTolerance)) << name;
    EXPECT_TRUE(is_close(prompt[1].narrow(0, 0, 4), whole[1].narrow(0, 0, 4), kTolerance)) << name;
    EXPECT_TRUE(is_close(next[0], whole[0].narrow(0, 9, 1), kTolerance)) << name;
    EXPECT_TRUE(is_close(next[1], whole[1].narrow(0, 4, 1), kTolerance)) << name;
  }
}

/// Nine heads' slopes are no powers of two: float32 would round their products with distances.
TEST(KVCache, AlibiOfDifferentLengthsIsAsPreciseAsTheModule) {
  torch::manual_seed(moved(7));
  const at::NoGradGuard no_grad;
  GroupQueryAttention module(GroupQueryAttentionOptions(18, 9, 3).causal(true).alibi(true));
  module->to(at::kDouble);
  const auto x = uniform({B, 7, 18}, at::kDouble);
  KVCache cache(KVCacheOptions(B, 3, 7, 2).dtype(at::kDouble));
  const auto prompt = module->forward_cached(x, cache, {7, 4});
  const auto whole = module(x);
  EXPECT_TRUE(is_close(prompt[0], whole[0], 1e-14));
  EXPECT_TRUE(is_close(prompt[1].narrow(0, 0, 4), whole[1].narrow(0, 0, 4), 1e-14));
}

/// Prompts of 9 and 4 tokens in one padded batch, then 6 more tokens of each.
TEST(KVCache, SequencesMayHaveDifferentLengths) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  for (const int64_t window : {0, 3}) {
    auto options = GroupQueryAttentionOptions(E, H, G).causal(true);
    options.rotary(RotaryEmbeddingOptions(D));
    if (window > 0) options.window(window);
    GroupQueryAttention module(options);
    const std::vector<int64_t> prompts = {9, 4};
    const auto x = uniform({B, 15, E}, at::kFloat);  // sequence 1 has 10 of the 15
    auto cache = window > 0 ? make_cache(G, 12, window) : make_cache(G, 15);
    const auto prompt = module->forward_cached(x.narrow(1, 0, 9), cache, prompts);
    EXPECT_EQ(cache.lengths(), prompts);
    std::vector<at::Tensor> steps;
    for (int64_t i = 0; i < 6; ++i) {
      const auto token =
          at::cat({x.narrow(0, 0, 1).narrow(1, 9 + i, 1), x.narrow(0, 1, 1).narrow(1, 4 + i, 1)});
      steps.push_back(module->forward_cached(token, cache));
    }
    const auto rest = at::cat(steps, 1);
    const auto whole = module(x);  // causal: what follows a token does not change it
    EXPECT_TRUE(is_close(prompt[0], whole[0].narrow(0, 0, 9), kTolerance));
    EXPECT_TRUE(is_close(prompt[1].narrow(0, 0, 4), whole[1].narrow(0, 0, 4), kTolerance));
    EXPECT_TRUE(is_close(rest[0], whole[0].narrow(0, 9, 6), kTolerance));
    EXPECT_TRUE(is_close(rest[1], whole[1].narrow(0, 4, 6), kTolerance));
  }
}

TEST(KVCache, NestedSequencesRotateFromTheirOwnStart) {
  torch::manual_seed(moved(4));
  const at::NoGradGuard no_grad;
  GroupQueryAttention module(
      GroupQueryAttentionOptions(E, H, G).causal(true).rotary(RotaryEmbeddingOptions(D)));
  const auto first = uniform({7, E}, at::kFloat), second = uniform({3, E}, at::kFloat);
  const auto output = module(at::_nested_tensor_from_tensor_list({first, second})).unbind();
  EXPECT_TRUE(is_close(output[0], module(first.unsqueeze(0))[0], kTolerance));
  EXPECT_TRUE(is_close(output[1], module(second.unsqueeze(0))[0], kTolerance));
}

}  // namespace
}  // namespace heed::test::of_module_caches
