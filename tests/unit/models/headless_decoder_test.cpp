// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/model_cost.h>
#include <heed/pack_weights.h>

#include <tuple>
#include <vector>

#include "support/expect.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/transformers.h"

/// Decoders without a head.

namespace heed::test::of_headless_decoders {
namespace {

constexpr int64_t B = 3, E = 32, H = 4, G = 2, L = 11, V = 50;

DecoderOptions headless_options() {
  return DecoderOptions(V, llama_options(E, H, G), 2).embedding_scale(2.0).head(false);
}

/// The stack is tested by itself.
TEST(HeadlessDecoder, ReturnsTheStatesOfItsStack) {
  torch::manual_seed(moved(111));
  const at::NoGradGuard no_grad;
  for (const bool tied : {false, true}) {
    Decoder model(headless_options().tied_head(tied));
    model->eval();
    EXPECT_TRUE(model->head.is_empty());
    EXPECT_EQ(model->parameters().size(), 1 + model->stack->parameters().size());
    const auto tokens = at::randint(V, {B, L}, at::kLong);
    const auto expected = model->stack->forward(model->token_embedding(tokens) * 2.0);
    EXPECT_TRUE(is_close(model(tokens), expected, 1e-6));
    const auto [states, weights] = model->forward_with_weights(tokens);
    EXPECT_TRUE(is_close(states, expected, 1e-5));
    EXPECT_EQ(weights.size(), 2U);
  }
}

TEST(HeadlessDecoder, ReturnsTheStatesOfCachedTokens) {
  torch::manual_seed(moved(112));
  const at::NoGradGuard no_grad;
  Decoder model(headless_options());
  model->eval();
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const auto expected = model(tokens);
  auto caches = model->make_caches(B, L);
  EXPECT_TRUE(is_close(in_chunks(model, tokens, caches, 4), expected, 1e-5));
  auto last = model->make_caches(B, L);
  const auto rows = model->forward_cached(tokens, last, {L, 3, 0}, /*last_only=*/true);
  ASSERT_EQ(rows.sizes(), at::IntArrayRef({B, 1, E}));
  EXPECT_TRUE(is_close(rows[0][0], expected[0][L - 1], 1e-5));
  EXPECT_TRUE(is_close(rows[1][0], expected[1][2], 1e-5));
  EXPECT_TRUE(rows[2].equal(at::zeros({1, E})));
  auto pages = model->make_paged_cache(/*pages=*/4, PagedCacheOptions().page_size(16));
  auto step = pages.append({pages.add()}, {L});
  const auto paged = model->forward_cached(tokens.narrow(0, 0, 1), step, /*last_only=*/true);
  EXPECT_TRUE(is_close(paged, expected.narrow(0, 0, 1).narrow(1, L - 1, 1), 1e-5));
}

TEST(HeadlessDecoder, IsPrintedCountedAndPacked) {
  torch::manual_seed(moved(113));
  const at::NoGradGuard no_grad;
  Decoder model(headless_options());
  model->eval();
  EXPECT_EQ(printed(model), "heed::Decoder(vocab_size=50, head=false, embedding_scale=2)");
  const auto cost = model_cost(*model, B, L);
  int64_t parameters = 0;
  for (const auto& parameter : model->parameters()) parameters += parameter.numel();
  EXPECT_EQ(cost.total().parameters, parameters);
  for (const auto& part : cost.parts) EXPECT_EQ(part.name.find("head"), std::string::npos);
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const auto expected = model(tokens);
  pack_weights(*model);
  // Nothing multiplies by the embedding.
  EXPECT_TRUE(model->token_embedding->weight.has_storage());
  EXPECT_TRUE(are_alike({model(tokens)}, {expected}, 1e-5));
}

TEST(HeadlessDecoder, RefusesWhatNeedsAHead) {
  Decoder model(headless_options());
  const auto tokens = at::zeros({B, L}, at::kLong);
  EXPECT_ERROR("Decoder: loss needs a head: DecoderOptions::head is false",
               model->loss(tokens, tokens + 1));
  EXPECT_ERROR("Decoder: softcap (30) must not be given without a head",
               Decoder(headless_options().softcap(30.0)));
}

}  // namespace
}  // namespace heed::test::of_headless_decoders
