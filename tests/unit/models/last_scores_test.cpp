// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>

#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/transformers.h"

/// Scores of the last token of each sequence alone.

namespace heed::test::of_last_scores {
namespace {

constexpr int64_t B = 3, E = 32, H = 4, G = 2, L = 11, V = 50;

std::vector<DecoderOptions> all_options() {
  const auto learned = PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(L);
  return {DecoderOptions(V, llama_options(E, H, G), 2).tied_head(false).softcap(3.0),
          DecoderOptions(V, llama_options(E, H, G), 2),
          DecoderOptions(V, block_options(E, H, G), 2).positions(learned)};
}

TEST(LastScores, AreThoseOfTheLastCountedToken) {
  torch::manual_seed(moved(71));
  const at::NoGradGuard no_grad;
  for (const auto& options : all_options()) {
    Decoder model(options);
    model->eval();
    const auto tokens = at::randint(V, {B, L}, at::kLong);
    for (const auto& counts : {std::vector<int64_t>{}, {4, 7, 1}, {7, 7, 7}}) {
      auto all = model->make_caches(B, L), last = model->make_caches(B, L);
      const auto prompt = tokens.narrow(1, 0, 7);
      const auto whole = model->forward_cached(prompt, all, counts);
      const auto found = model->forward_cached(prompt, last, counts, /*last_only=*/true);
      ASSERT_EQ(found.sizes(), at::IntArrayRef({B, 1, V}));
      for (int64_t b = 0; b < B; ++b) {
        const auto row = counts.empty() ? 6 : counts[static_cast<size_t>(b)] - 1;
        // Products of different numbers of rows may round differently.
        EXPECT_TRUE(is_close(found[b][0], whole[b][row], 1e-5)) << b;
      }
      // The caches have the same keys, so the next step is the same.
      const auto next = tokens.narrow(1, 7, 1);
      EXPECT_TRUE(is_close(model->forward_cached(next, last, {}, /*last_only=*/true),
                           model->forward_cached(next, all), 1e-5));
    }
  }
}

TEST(LastScores, AreZeroWhereNoTokenCounts) {
  torch::manual_seed(moved(72));
  const at::NoGradGuard no_grad;
  for (const auto& options : all_options()) {
    Decoder model(options);
    model->eval();
    auto caches = model->make_caches(B, L);
    const auto tokens = at::randint(V, {B, 4}, at::kLong);
    const auto scores = model->forward_cached(tokens, caches, {2, 0, 4}, /*last_only=*/true);
    EXPECT_EQ(scores[1].ne(0).sum().item<int64_t>(), 0);
    EXPECT_GT(scores[0].ne(0).sum().item<int64_t>(), 0);
    EXPECT_EQ(caches[0].lengths(), std::vector<int64_t>({2, 0, 4}));
    const auto none = model->forward_cached(tokens.narrow(1, 0, 0), caches, {}, /*last_only=*/true);
    EXPECT_TRUE(none.equal(at::zeros({B, 1, V})));
  }
}

TEST(LastScores, LeaveTheCachesWhereTheCallIsRefused) {
  const at::NoGradGuard no_grad;
  Decoder model(all_options()[0]);
  model->eval();
  auto caches = model->make_caches(B, L);
  const auto tokens = at::zeros({B, 4}, at::kLong);
  EXPECT_ERROR("KVCache::append: counts size (2) must equal batch (3)",
               model->forward_cached(tokens, caches, {1, 2}, /*last_only=*/true));
  EXPECT_EQ(caches[0].lengths(), std::vector<int64_t>({0, 0, 0}));
}

}  // namespace
}  // namespace heed::test::of_last_scores
