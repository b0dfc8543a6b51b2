// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/model_cost.h>
#include <heed/paged_kv_cache.h>

#include <sstream>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/transformers.h"

/// Tests of blocks whose self-attention is a LatentAttention. block_layers_test.cpp also tests such
/// a block: decoding, checkpoints, copies, files and packing.

namespace heed::test::block_attention {
namespace {

constexpr int64_t B = 2, E = 32, H = 4, R = 12, D = 8, Dr = 4, L = 9, V = 40;

LatentAttentionOptions latent_options() {
  return LatentAttentionOptions(E, H, R).plain_head_dim(D).rotary_head_dim(Dr).value_head_dim(6);
}

TransformerBlockOptions with_latent(const LatentAttentionOptions& attention = latent_options()) {
  return llama_options(E, H, H).attention(attention);
}

const LatentAttentionImpl& latent_of(const Encoder& stack, size_t layer) {
  const auto block = stack->blocks.ptr()->ptr<TransformerBlockImpl>(layer);
  return *block->attention_module()->as<LatentAttention>();
}

TEST(BlockAttention, ReadsTheInputsOfABlock) {
  torch::manual_seed(moved(1));
  const at::NoGradGuard no_grad;
  TransformerBlock block(with_latent());
  const auto first = uniform({1, 5, E}, at::kFloat), second = uniform({1, 4, E}, at::kFloat);
  const auto packed = at::cat({first, second}, 1);
  const auto documents = at::tensor({0, 0, 0, 0, 0, 1, 1, 1, 1}, at::kLong);
  const auto positions = at::tensor({0, 1, 2, 3, 4, 0, 1, 2, 3}, at::kLong);
  const auto apart = at::cat({block(first), block(second)}, 1);
  const auto inputs = TransformerInputs().documents(documents).positions(positions);
  EXPECT_TRUE(is_close(block->forward(packed, inputs), apart, 1e-6));
  const auto by_weights = std::get<0>(block->forward_with_weights(packed, inputs));
  EXPECT_TRUE(is_close(by_weights, apart, 1e-6));
  auto& rotary = block->attention_module()->as<LatentAttention>()->rotary;
  const auto angles = rotary->angles(positions, at::kFloat);
  const auto given = TransformerInputs().documents(documents).rotary_angles(angles);
  EXPECT_TRUE(block->forward(packed, given).equal(block->forward(packed, inputs)));
  // Key lengths hide what a mask hides, and a bias of -100 as good as hides.
  const auto shown = at::ones({L, L}, at::kBool).tril().narrow(0, 0, L);
  const auto real = at::arange(L).lt(6);
  const auto lengths = at::tensor({int64_t{6}}, at::kLong);
  const auto masked = block->forward(packed, TransformerInputs(shown.logical_and(real)));
  const auto biased =
      TransformerInputs().bias((real.logical_not().to(at::kFloat) * -100.0).expand({L, L}));
  EXPECT_TRUE(is_close(block->forward(packed, biased), masked, 1e-6));
  const auto cut = TransformerInputs().query_lengths(lengths).key_lengths(lengths);
  EXPECT_TRUE(
      is_close(block->forward(packed, cut).narrow(1, 0, 6), block(packed.narrow(1, 0, 6)), 1e-6));
}

TEST(BlockAttention, ReturnsItsWeights) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  TransformerBlock block(with_latent());
  const auto x = uniform({B, L, E}, at::kFloat);
  const auto [output, weights] = block->forward_with_weights(x);
  EXPECT_TRUE(is_close(output, block(x), 1e-6));
  EXPECT_EQ(weights.self.sizes(), at::IntArrayRef({B, H, L, L}));
  EXPECT_TRUE(is_close(weights.self.sum(-1), at::ones({B, H, L}), 1e-6));
  EXPECT_TRUE(weights.self.triu(1).eq(0).all().item<bool>());
}

TEST(BlockAttention, SharesRotaryEmbeddingsInAStack) {
  const auto stack = Encoder(EncoderOptions(with_latent(), 2));
  EXPECT_EQ(latent_of(stack, 0).rotary.get(), latent_of(stack, 1).rotary.get());
  const Encoder copy(std::dynamic_pointer_cast<EncoderImpl>(stack->clone()));
  EXPECT_EQ(latent_of(copy, 0).rotary.get(), latent_of(copy, 1).rotary.get());
  EXPECT_NE(latent_of(copy, 0).rotary.get(), latent_of(stack, 0).rotary.get());
}

TEST(BlockAttention, MayDifferBetweenBlocks) {
  torch::manual_seed(moved(3));
  const at::NoGradGuard no_grad;
  auto grouped = llama_options(E, H, 2);
  grouped.attention().causal(true);
  Decoder model(DecoderOptions(V, EncoderOptions({with_latent(), grouped})));
  model->eval();
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  auto caches = model->make_caches(B, L);
  EXPECT_EQ(caches[0].options().groups(), 1);
  EXPECT_EQ(caches[0].options().head_dim(), R + Dr);
  EXPECT_EQ(caches[1].options().groups(), 2);
  EXPECT_TRUE(is_close(in_chunks(model, tokens, caches, 2), model(tokens), 1e-5));
  EXPECT_ERROR(
      "Encoder: blocks[1] key/value heads must equal those of blocks[0] in number and size with a "
      "PagedKVCache",
      model->make_paged_cache(4));
}

TEST(BlockAttention, DecodesWithGivenAngles) {
  torch::manual_seed(moved(4));
  const at::NoGradGuard no_grad;
  Encoder stack(EncoderOptions(with_latent(), 2));
  stack->eval();
  // The scores of a new stack are close to 0, so that rotation changes next to nothing.
  for (auto& parameter : stack->parameters()) parameter.uniform_(-0.5, 0.5);
  const auto x = uniform({B, L, E}, at::kFloat);
  const auto angles = latent_of(stack, 0).rotary->angles(at::arange(L) * 3, at::kFloat);
  const auto inputs = TransformerInputs().rotary_angles(angles);
  const auto expected = stack->forward(x, inputs);
  EXPECT_FALSE(is_close(stack(x), expected, 1e-3));
  auto caches = stack->make_caches(B, L);
  EXPECT_TRUE(is_close(stack->forward_cached(x, caches, {}, inputs), expected, 1e-5));
  EXPECT_ERROR("TransformerBlock: documents must be absent with a cache",
               stack->forward_cached(x, caches, {}, TransformerInputs().documents(at::arange(L))));
}

TEST(BlockAttention, HasCosts) {
  const auto cost = model_cost(*Encoder(EncoderOptions(with_latent(), 2)), B, L);
  const auto& part = cost.parts.front();
  EXPECT_EQ(part.name, "attention");
  const int64_t weights = E * H * (D + Dr) + E * (R + Dr) + R * H * (D + 6) + H * 6 * E;
  EXPECT_EQ(part.parameters, 2 * (weights + R));  // kv_norm too
  EXPECT_EQ(part.macs, 2 * B * L * (weights + H * L * (D + Dr + 6)));
  EXPECT_EQ(part.kv_cache_bytes, 2 * B * L * (R + Dr) * 4);
}

TEST(BlockAttention, IsInitializedAsOtherAttentions) {
  torch::manual_seed(moved(5));
  Encoder stack(EncoderOptions(with_latent(), 8));
  const auto deviation_of = [](const at::Tensor& weight) { return weight.std().item<double>(); };
  // A normal deviate's own deviation is within 10 % of the true one for 512 draws and more.
  EXPECT_NEAR(deviation_of(latent_of(stack, 3).fc_kv_down->weight), 0.02, 0.003);
  EXPECT_NEAR(deviation_of(latent_of(stack, 3).fc_o->weight), 0.02 / 4, 0.0007);  // sqrt(2 * 8)
}

TEST(BlockAttention, IsReadByItsKind) {
  const auto options = with_latent();
  EXPECT_EQ(options.emb_dim(), E);
  EXPECT_TRUE(options.causal());
  EXPECT_TRUE(std::holds_alternative<LatentAttentionOptions>(options.attention_layer()));
  EXPECT_ERROR(
      "TransformerBlockOptions: attention must be GroupQueryAttentionOptions to be read; "
      "attention_layer() returns any kind",
      options.attention());
  const TransformerBlock block(options);
  EXPECT_TRUE(block->attention.is_empty());
  const TransformerBlock grouped(llama_options(E, H, 2));
  EXPECT_EQ(grouped->attention_module(), grouped->attention.ptr());
  EXPECT_EQ(TransformerBlockOptions(latent_options()).feed_forward().emb_dim(), E);
  std::ostringstream text;
  block->pretty_print(text);
  EXPECT_EQ(text.str(), "heed::TransformerBlock(norm=rms_norm, norm_placement=pre, dropout=0)");
}

TEST(BlockAttention, IsRefusedWhereItDoesNotFit) {
  EXPECT_ERROR(
      "TransformerBlock: cross_attention must have options of its own with LatentAttentionOptions",
      TransformerBlock(with_latent().cross_attention(true)));
  EXPECT_ERROR("TransformerBlock: feed_forward emb_dim (32) must equal attention emb_dim (16)",
               TransformerBlock(with_latent(LatentAttentionOptions(16, H, R))));
  DecoderOptions decoder(V, with_latent(latent_options().causal(false)), 1);
  EXPECT_TRUE(decoder.stack().block().causal());
  decoder.stack().block().causal(false);
  EXPECT_ERROR("Decoder: attention causal must be true", Decoder(DecoderOptions(decoder)));
  TransformerBlock block(with_latent());
  EXPECT_ERROR(
      "LatentAttention: mask dtype (Float) must be Bool or an integer; it holds 0 alone: if 0 "
      "shows, pass mask_from_additive(mask) or pass it as bias; if 0 hides, pass mask != 0",
      block->forward(at::zeros({B, L, E}), at::zeros({L, L})));
  TransformerBlock dropping(with_latent(latent_options().dropout(0.1)));
  auto cache = dropping->make_cache(B, L);
  EXPECT_ERROR(
      "LatentAttention: dropout (0.1) must be 0 in training mode with a cache: call eval()",
      dropping->forward_cached(at::zeros({B, 1, E}), cache));
  EXPECT_EQ(cache.lengths(), std::vector<int64_t>(B, 0));
}

}  // namespace
}  // namespace heed::test::block_attention
