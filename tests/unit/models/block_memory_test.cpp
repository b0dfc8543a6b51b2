// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/encoder_decoder.h>
#include <heed/model_cost.h>
#include <heed/paged_kv_cache.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/transformers.h"
#include "unit/models/reference_block.h"

/// Tests of cross-attention with options of its own, of blocks without self-attention, and of norms
/// of the memory.

namespace heed::test::block_memory {
namespace {

constexpr int64_t B = 2, E = 32, H = 4, G = 2, L = 9, S = 7, W = 20, V = 40;

/// Other heads than the self-attention has, and a memory of another width.
GroupQueryAttentionOptions cross_options() {
  return GroupQueryAttentionOptions(E, /*head_num=*/2, /*group_num=*/1)
      .key_emb_dim(W)
      .value_emb_dim(W)
      .key_bias(false);  // softmax cancels it: its gradient is rounding alone
}

TransformerBlockOptions crossed() {
  auto options = block_options(E, H, G);
  options.attention().key_bias(false);
  return options.cross_attention(cross_options());
}

TransformerBlock double_block(const TransformerBlockOptions& options) {
  auto block = with_random_vectors(TransformerBlock(options));
  block->to(at::kDouble);
  return block;
}

TEST(BlockMemory, HasOtherHeadsAndWidths) {
  torch::manual_seed(moved(1));
  for (const auto placement : {NormPlacement::pre, NormPlacement::post}) {
    SCOPED_TRACE(to_string(placement));
    const auto block = double_block(crossed().norm_placement(placement));
    EXPECT_EQ(block->cross_attention->fc_k->weight.sizes(), at::IntArrayRef({E / 2, W}));
    const auto x = uniform({B, L, E}, at::kDouble), memory = uniform({B, S, W}, at::kDouble);
    expect_is_the_reference(block, reference_of(block), x, memory);
    const auto inputs = TransformerInputs().memory(memory);
    const auto output = block.ptr()->forward(x, inputs);
    const auto projected = TransformerInputs().projected_memory({block->project_memory(memory)});
    EXPECT_TRUE(are_alike({block.ptr()->forward(x, projected)}, {output}, 1e-12));
    const auto [by_weights, weights] = block->forward_with_weights(x, inputs);
    EXPECT_TRUE(are_alike({by_weights}, {output}, 1e-12));
    EXPECT_EQ(weights.self.sizes(), at::IntArrayRef({B, H, L, L}));
    EXPECT_EQ(weights.cross.sizes(), at::IntArrayRef({B, 2, L, S}));
    // A mask of every head is one of cross-attention's two.
    const auto mask = at::ones({B, 2, L, S}, at::kBool);
    EXPECT_TRUE(are_alike({block.ptr()->forward(x, TransformerInputs(inputs).memory_mask(mask))},
                          {output}, 1e-12));
  }
}

TEST(BlockMemory, IsReadWithoutSelfAttention) {
  torch::manual_seed(moved(2));
  const auto x = uniform({B, L, E}, at::kDouble), memory = uniform({B, S, W}, at::kDouble);
  for (const auto placement : {NormPlacement::pre, NormPlacement::sandwich}) {
    SCOPED_TRACE(to_string(placement));
    const auto block = double_block(
        crossed().self_attention(false).norm_placement(placement).layer_scale(0.2).dropout(0.1));
    EXPECT_EQ(block->attention_module(), nullptr);
    EXPECT_EQ(block->norm_module("attention_norm"), nullptr);
    EXPECT_FALSE(block->attention_layer_scale.defined());
    expect_is_the_reference(block, reference_of(block), x, memory);
    const auto weights =
        std::get<1>(block->forward_with_weights(x, TransformerInputs().memory(memory)));
    EXPECT_FALSE(weights.self.defined());
    EXPECT_EQ(weights.cross.sizes(), at::IntArrayRef({B, 2, L, S}));
  }
  // The heads of the attention's options, where cross-attention has none of its own.
  auto options = block_options(E, H, G).cross_attention(true).self_attention(false);
  options.attention().key_bias(false);
  const auto block = double_block(options);
  expect_is_the_reference(block, reference_of(block), x, uniform({B, S, E}, at::kDouble));
  EXPECT_EQ(printed(block),
            "heed::TransformerBlock(norm=layer_norm, norm_placement=pre, dropout=0, "
            "cross_attention=true, self_attention=false)");
}

TEST(BlockMemory, IsNormalizedByTheNormOfQueries) {
  torch::manual_seed(moved(3));
  for (const auto placement : {NormPlacement::pre, NormPlacement::sandwich}) {
    SCOPED_TRACE(to_string(placement));
    auto options = block_options(E, H, G).cross_attention(true).memory_norm(true);
    options.attention().key_bias(false);
    const auto block = double_block(options.norm_placement(placement));
    const auto x = uniform({B, L, E}, at::kDouble), memory = uniform({B, S, E}, at::kDouble);
    expect_is_the_reference(block, reference_of(block), x, memory);
    const auto output = block.ptr()->forward(x, TransformerInputs().memory(memory));
    const auto projected = TransformerInputs().projected_memory({block->project_memory(memory)});
    EXPECT_TRUE(are_alike({block.ptr()->forward(x, projected)}, {output}, 1e-12));
  }
}

TEST(BlockMemory, IsReadBesideALatentAttention) {
  torch::manual_seed(moved(4));
  const auto options =
      crossed().attention(LatentAttentionOptions(E, H, 16).plain_head_dim(8).rotary_head_dim(4));
  TransformerBlock block(options);
  const auto x = uniform({B, L, E}, at::kFloat), memory = uniform({B, S, W}, at::kFloat);
  auto* latent = block->attention_module()->as<LatentAttention>();
  const auto attended = x + latent->forward(block->attention_norm(x));
  const auto crossing = attended + block->cross_attention.ptr()->forward(
                                       block->cross_attention_norm(attended), memory, memory);
  const auto expected = crossing + block->feed_forward(block->feed_forward_norm(crossing));
  EXPECT_TRUE(block.ptr()->forward(x, TransformerInputs().memory(memory)).equal(expected));
}

/// A block of each kind: self-attention alone, both, and cross-attention alone, which is the first.
EncoderOptions mixed_stack() {
  auto both = llama_options(E, H, G);
  both.attention().causal(true);
  const auto alone = both;
  both.cross_attention(cross_options());
  auto crossing = both;
  return EncoderOptions({crossing.self_attention(false), alone, both, alone});
}

Decoder mixed_decoder() {
  auto model = with_random_vectors(Decoder(DecoderOptions(V, mixed_stack())));
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() > 1) parameter.mul_(10.0);  // or attention changes next to nothing
  }
  return model;
}

/// Such a decoder, with what it reads.
struct MixedCase {
  Decoder model;
  at::Tensor tokens, memory;
  TransformerInputs inputs;
};

MixedCase mixed_case() {
  auto model = mixed_decoder();
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const auto memory = uniform({B, S, W}, at::kFloat);
  return {model, tokens, memory, TransformerInputs().memory(memory)};
}

TEST(BlockMemory, IsReadBySomeBlocksOfAStack) {
  torch::manual_seed(moved(5));
  const at::NoGradGuard no_grad;
  auto [model, tokens, memory, inputs] = mixed_case();
  const auto x = model->token_embedding(tokens);
  auto result = x;
  for (size_t i = 0; i < 4; ++i) {
    const auto block = model->stack->blocks->ptr<TransformerBlockImpl>(i);
    result = i % 2 == 0 ? block->forward(result, inputs) : block->forward(result);
  }
  EXPECT_TRUE(model->stack->forward(x, inputs).equal(model->stack->final_norm(result)));
  const auto other = TransformerInputs().memory(memory.flip(1) * 2);
  EXPECT_FALSE(is_close(model->forward(tokens, other), model->forward(tokens, inputs), 1e-3));
  const auto projected = model->project_memory(memory);
  ASSERT_EQ(projected.size(), 4);
  EXPECT_FALSE(projected[1].key.defined());
  const auto again = TransformerInputs().projected_memory(projected);
  EXPECT_TRUE(are_alike({model->forward(tokens, again)}, {model->forward(tokens, inputs)}, 1e-5));
  // A mask of the self-attention does not reach the block that has none.
  const auto mask = at::ones({L, L}, at::kBool);
  EXPECT_TRUE(are_alike({model->forward(tokens, TransformerInputs(inputs).mask(mask))},
                        {model->forward(tokens, inputs)}, 1e-5));
}

TEST(BlockMemory, IsReadInCachesAndPages) {
  torch::manual_seed(moved(6));
  const at::NoGradGuard no_grad;
  auto [model, tokens, memory, inputs] = mixed_case();
  const auto expected = model->forward(tokens, inputs);
  const auto projected = TransformerInputs().projected_memory(model->project_memory(memory));
  for (const auto& own : {inputs, projected}) {
    for (const bool fixed : {false, true}) {
      auto caches = model->make_caches(B, L, CacheOptions().fixed_shapes(fixed));
      std::vector<at::Tensor> parts;
      for (const auto& part : tokens.split(2, 1)) {
        parts.push_back(model->forward_cached(part, caches, {}, own));
      }
      EXPECT_TRUE(are_alike({at::cat(parts, 1)}, {expected}, 1e-5));
      EXPECT_EQ(caches[0].lengths(), std::vector<int64_t>(B, L));
    }
  }
  auto pages = model->make_paged_cache(8);
  EXPECT_EQ(pages.options().layers(), 3);
  const auto first = pages.add(), second = pages.add();
  auto step = pages.append({first, second}, {L, L});
  step.memory_rows({0, 1});
  const auto paged = model->forward_cached(tokens.reshape({1, B * L}), step, false, inputs);
  EXPECT_TRUE(are_alike({paged.view({B, L, V})}, {expected}, 1e-5));
}

TEST(BlockMemory, IsTrainedWithCheckpointsAsWithout) {
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const auto memory = uniform({B, S, W}, at::kFloat);
  std::vector<std::vector<at::Tensor>> gradients;
  for (const bool checkpointing : {false, true}) {
    torch::manual_seed(moved(7));
    Decoder model(DecoderOptions(V, mixed_stack().checkpointing(checkpointing)));
    const auto source = memory.clone().requires_grad_();
    model
        ->loss(tokens.narrow(1, 0, L - 1), tokens.narrow(1, 1, L - 1),
               TransformerInputs().memory(source))
        .backward();
    auto& own = gradients.emplace_back();
    for (const auto& parameter : model->parameters()) own.push_back(parameter.grad());
    own.push_back(source.grad());
  }
  EXPECT_TRUE(are_equal(gradients[1], gradients[0]));
}

TEST(BlockMemory, HasCosts) {
  const auto cost = model_cost(*mixed_decoder(), B, L, S);
  for (const auto& part : cost.parts) {
    if (part.name == "attention") {
      EXPECT_EQ(part.count, 3);
    }
    if (part.name != "cross-attention") continue;
    EXPECT_EQ(part.count, 2);
    const int64_t memory_weights = 2 * (E / 2) * W, query_weights = 2 * E * E;
    const int64_t biases = E + E / 2 + E;
    EXPECT_EQ(part.parameters, 2 * (memory_weights + query_weights + biases));
    EXPECT_EQ(part.macs, 2 * B * (L * query_weights + S * memory_weights + 2 * L * S * E));
  }
  EXPECT_EQ(cost.total().parameters, [&] {
    int64_t count = 0;
    for (const auto& parameter : mixed_decoder()->parameters()) count += parameter.numel();
    return count;
  }());
}

TEST(BlockMemory, ComesFromAnEncoderOfAnotherWidth) {
  torch::manual_seed(moved(8));
  const at::NoGradGuard no_grad;
  const TextEncoderOptions source(V, EncoderOptions(block_options(W, 4, 4), 1));
  auto block = block_options(E, H, G).cross_attention(cross_options());
  block.attention().causal(true);
  EncoderDecoder model(EncoderDecoderOptions(source, DecoderOptions(V, block, 2)));
  model->eval();
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const auto memory = model->encoder(tokens);
  EXPECT_EQ(memory.size(2), W);
  EXPECT_TRUE(model(tokens, tokens)
                  .equal(model->decoder->forward(tokens, TransformerInputs().memory(memory))));
  auto wrong = block;
  wrong.cross_attention(cross_options().key_emb_dim(W + 1).value_emb_dim(W + 1));
  EXPECT_ERROR(
      "EncoderDecoder: decoder cross_attention key_emb_dim (21) must equal encoder "
      "emb_dim (20)",
      EncoderDecoder(EncoderDecoderOptions(source, DecoderOptions(V, wrong, 2))));
}

TEST(BlockMemory, IsRefusedWhereItDoesNotFit) {
  const auto error = [](const TransformerBlockOptions& options) {
    return value_error([&] { TransformerBlock{options}; });
  };
  const auto own = [](const GroupQueryAttentionOptions& cross) {
    return block_options(E, H, G).cross_attention(cross);
  };
  EXPECT_EQ(error(own(GroupQueryAttentionOptions(2 * E, H, G))),
            "TransformerBlock: cross_attention emb_dim (64) must equal attention emb_dim (32)");
  EXPECT_EQ(error(own(GroupQueryAttentionOptions(E, H, G).key_emb_dim(W))),
            "TransformerBlock: cross_attention key_emb_dim (20) must equal value_emb_dim (32): the "
            "memory is both");
  EXPECT_EQ(
      error(own(cross_options().causal(true))),
      "TransformerBlock: cross_attention causal must not be given: all of the memory is seen");
  EXPECT_EQ(
      error(own(cross_options().rotary(RotaryEmbeddingOptions(16)))),
      "TransformerBlock: cross_attention rotary must not be given: all of the memory is seen");
  EXPECT_EQ(error(block_options(E, H, G).self_attention(false)),
            "TransformerBlock: self_attention must be true without cross_attention");
  EXPECT_EQ(error(block_options(E, H, G).memory_norm(true)),
            "TransformerBlock: memory_norm must be false without cross_attention");
  EXPECT_EQ(error(crossed().memory_norm(true)),
            "TransformerBlock: memory_norm must be false where cross_attention key_emb_dim (20) is "
            "not emb_dim (32)");
  EXPECT_EQ(error(block_options(E, H, G).cross_attention(true).memory_norm(true).norm_placement(
                NormPlacement::post)),
            "TransformerBlock: memory_norm must be false for norm_placement post");
  TransformerBlock block(crossed().self_attention(false));
  const auto x = at::zeros({B, L, E});
  const auto inputs = TransformerInputs().memory(at::zeros({B, S, W}));
  EXPECT_ERROR("TransformerBlock: memory must be given: there is cross-attention", block(x));
  EXPECT_ERROR("TransformerBlock: memory dim 2 (32) must equal emb_dim (20); memory [2, 9, 32]",
               block->forward(x, TransformerInputs().memory(x)));
  EXPECT_ERROR("TransformerBlock: mask must be absent: there is no self-attention",
               block->forward(x, TransformerInputs(inputs).mask(at::ones({L, L}, at::kBool))));
  EXPECT_ERROR("TransformerBlock: a PagedKVCache needs self-attention", block->make_paged_cache(4));
  const auto plain = block_options(E, H, G);
  Encoder stack(EncoderOptions({plain, plain}));
  EXPECT_ERROR("TransformerBlock: memory must be absent: there is no cross-attention",
               stack->forward(x, inputs));
}

}  // namespace
}  // namespace heed::test::block_memory
