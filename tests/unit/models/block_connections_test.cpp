// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <heed/autocast.h>
#include <heed/decoder.h>
#include <heed/model_cost.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "modules/layers/parameters.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/transformers.h"
#include "unit/models/decoder_checks.h"
#include "unit/models/reference_block.h"

/// Tests of how a block adds what its layers compute to their inputs.

namespace heed::test::block_connections {
namespace {

constexpr int64_t B = 2, E = 32, H = 4, G = 2, L = 9, V = 40;
constexpr NormPlacement kPlacements[] = {NormPlacement::pre, NormPlacement::post,
                                         NormPlacement::sandwich, NormPlacement::output};

/// Output and gradients of a block of these options.
void expect_is_right(const TransformerBlockOptions& options) {
  auto block = with_random_vectors(TransformerBlock(options));
  block->to(at::kDouble);
  const auto memory = options.cross_attention() ? uniform({B, 7, E}, at::kDouble) : at::Tensor();
  expect_is_the_reference(block, reference_of(block), uniform({B, L, E}, at::kDouble), memory);
}

TEST(BlockConnections, LearnTheFactorsOfLayerScale) {
  torch::manual_seed(moved(1));
  for (const auto placement : kPlacements) {
    SCOPED_TRACE(to_string(placement));
    auto options = block_options(E, H, G);
    options.attention().key_bias(false);  // softmax cancels it: its gradient is rounding alone
    options.norm_placement(placement).layer_scale(1e-5);
    expect_is_right(options);
    expect_is_right(TransformerBlockOptions(options).cross_attention(true));
    expect_is_right(TransformerBlockOptions(options).residual_scale(-0.3));
  }
}

/// DeepNorm is the case of post.
TEST(BlockConnections, ScaleTheInputsOfLayers) {
  torch::manual_seed(moved(6));
  for (const auto placement : kPlacements) {
    SCOPED_TRACE(to_string(placement));
    auto options = block_options(E, H, G);
    options.attention().key_bias(false);
    options.norm_placement(placement).skip_scale(1.7);
    expect_is_right(options);
    expect_is_right(
        TransformerBlockOptions(options).cross_attention(true).residual_scale(0.4).layer_scale(
            0.2));
  }
  const auto x = uniform({B, L, E}, at::kFloat);
  auto parallel =
      with_random_vectors(TransformerBlock(block_options(E, H, G).parallel(true).skip_scale(-0.5)));
  const auto layers = parallel->attention(parallel->attention_norm(x)) +
                      parallel->feed_forward(parallel->feed_forward_norm(x));
  EXPECT_TRUE(are_alike({parallel(x)}, {layers - 0.5 * x}, 8 * unit_roundoff(at::kFloat)));
  EXPECT_EQ(printed(parallel),
            "heed::TransformerBlock(norm=layer_norm, norm_placement=pre, parallel=true, "
            "skip_scale=-0.5, dropout=0)");
  EXPECT_ERROR("TransformerBlock: skip_scale (0) must be finite and not 0",
               TransformerBlock(block_options(E, H, G).skip_scale(0.0)));
}

TEST(BlockConnections, ScaleParallelLayers) {
  torch::manual_seed(moved(2));
  const auto x = uniform({B, L, E}, at::kFloat);
  auto block =
      with_random_vectors(TransformerBlock(block_options(E, H, G).parallel(true).layer_scale(0.1)));
  const auto expected =
      x + block->attention_layer_scale * block->attention(block->attention_norm(x)) +
      block->feed_forward_layer_scale * block->feed_forward(block->feed_forward_norm(x));
  EXPECT_TRUE(are_alike({block(x)}, {expected}, 8 * unit_roundoff(at::kFloat)));
}

TEST(BlockConnections, BeginWithTheGivenFactor) {
  const auto options = block_options(E, H, G).cross_attention(true).layer_scale(0.25);
  TransformerBlock block(options);
  for (const auto* name :
       {"attention_layer_scale", "cross_attention_layer_scale", "feed_forward_layer_scale"}) {
    const auto* found = block->named_parameters(/*recurse=*/false).find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_TRUE(found->equal(at::full({E}, 0.25))) << name;
    EXPECT_TRUE(found->requires_grad());
    const at::NoGradGuard no_grad;
    found->detach().zero_();
  }
  block->reset_parameters();
  EXPECT_TRUE(block->feed_forward_layer_scale.equal(at::full({E}, 0.25)));
  EXPECT_EQ(printed(block),
            "heed::TransformerBlock(norm=layer_norm, norm_placement=pre, layer_scale=0.25, "
            "dropout=0, cross_attention=true)");
  const TransformerBlock without(block_options(E, H, G));
  EXPECT_FALSE(without->attention_layer_scale.defined());
  EXPECT_EQ(without->parameters(/*recurse=*/false).size(), 0);
  const TransformerBlock zero(block_options(E, H, G).layer_scale(0.0));
  EXPECT_TRUE(zero->attention_layer_scale.equal(at::full({E}, 0.0)));
  {
    const detail::UninitializedParameters loading(at::kBFloat16);
    const TransformerBlock empty(options);
    EXPECT_EQ(empty->attention_layer_scale.scalar_type(), at::kBFloat16);
  }
  EXPECT_ERROR("TransformerBlock: layer_scale (nan) must be finite",
               TransformerBlock(block_options(E, H, G).layer_scale(std::nan(""))));
}

DecoderOptions scaled_decoder() {
  return {V, llama_options(E, H, G).layer_scale(0.3).skip_scale(1.2), /*num_layers=*/2};
}

TEST(BlockConnections, DecodeFromCaches) {
  torch::manual_seed(moved(3));
  const at::NoGradGuard no_grad;
  auto model = with_random_vectors(Decoder(scaled_decoder()));
  expect_decodes_from_caches(model, at::randint(V, {B, L}, at::kLong), 2);
}

TEST(BlockConnections, AreTrainedWithCheckpointsAsWithout) {
  expect_same_with_checkpoints(scaled_decoder(), at::randint(V, {B, L}, at::kLong), 4);
}

TEST(BlockConnections, HaveCosts) {
  auto options = block_options(E, H, G).layer_scale(0.1);
  const auto cost_of = [&] { return model_cost(*Encoder(EncoderOptions(options, 3)), B, L); };
  const auto scaled = cost_of();
  options.layer_scale(std::nullopt);
  const auto plain = cost_of();
  const auto is_scale = [](const ModelCost::Part& part) { return part.name == "layer scale"; };
  const auto found = std::find_if(scaled.parts.begin(), scaled.parts.end(), is_scale);
  ASSERT_NE(found, scaled.parts.end());
  EXPECT_EQ(found->count, 6);
  EXPECT_EQ(found->parameters, 6 * E);
  EXPECT_EQ(found->parameter_bytes, 6 * E * 4);
  EXPECT_EQ(found->macs, 0);
  EXPECT_EQ(scaled.total().parameters, plain.total().parameters + 6 * E);
  EXPECT_TRUE(std::none_of(plain.parts.begin(), plain.parts.end(), is_scale));
}

/// The stream of tokens keeps its dtype.
TEST(BlockConnections, FollowAutocast) {
  torch::manual_seed(moved(5));
  const auto x = uniform({B, L, E}, at::kFloat);
  auto block = with_random_vectors(TransformerBlock(block_options(E, H, G).layer_scale(0.3)));
  const auto expected = block(x);
  const Autocast autocast(at::kCPU, at::kBFloat16);
  const auto low = block(x.to(at::kBFloat16));
  EXPECT_EQ(low.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(are_alike({low}, {expected}, 0.05));  // bfloat16 has 8 bits
  EXPECT_TRUE(are_alike({block(x)}, {expected}, 0.05));
}

}  // namespace
}  // namespace heed::test::block_connections
