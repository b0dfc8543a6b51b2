// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/transformer.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <vector>

#include "modules/layers/parameters.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/transformers.h"

/// Tests of what published models ask of blocks: other places of norms, parallel layers, blocks
/// that differ.

namespace heed::test::block_options_of_models {
namespace {

constexpr int64_t B = 2, E = 32, H = 4, G = 2, L = 11, V = 50;

/// Other norms for each place, so that no two can stand for each other.
template <typename Module>
Module with_random_norms(Module module) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module->parameters()) {
    if (parameter.dim() == 1) parameter.uniform_(0.5, 1.5);
  }
  module->eval();
  return module;
}

TEST(TransformerBlock, NormalizesTheOutputsOfItsLayers) {
  torch::manual_seed(moved(1));
  const auto x = uniform({B, L, E}, at::kFloat), memory = uniform({B, 7, E}, at::kFloat);
  for (const auto placement : {NormPlacement::sandwich, NormPlacement::output}) {
    const bool sandwich = placement == NormPlacement::sandwich;
    const auto block = with_random_norms(
        TransformerBlock(block_options(E, H, G).norm_placement(placement).cross_attention(true)));
    const auto layers = [&](const at::Tensor& input, Norm norm, Norm output_norm,
                            const auto& layer) {
      return sandwich ? input + output_norm(layer(norm(input))) : input + norm(layer(input));
    };
    auto expected = layers(x, block->attention_norm, block->attention_output_norm,
                           [&](const at::Tensor& t) { return block->attention.ptr()->forward(t); });
    expected = layers(expected, block->cross_attention_norm, block->cross_attention_output_norm,
                      [&](const at::Tensor& t) {
                        return block->cross_attention.ptr()->forward(t, memory, memory);
                      });
    expected = layers(expected, block->feed_forward_norm, block->feed_forward_output_norm,
                      [&](const at::Tensor& t) { return block->feed_forward.ptr()->forward(t); });
    const auto inputs = TransformerInputs().memory(memory);
    EXPECT_TRUE(block.ptr()->forward(x, inputs).equal(expected)) << to_string(placement);
    EXPECT_EQ(block->named_parameters().contains("attention_output_norm.weight"), sandwich);
    EXPECT_EQ(printed(block), std::string("heed::TransformerBlock(norm=layer_norm, ") +
                                  "norm_placement=" + (sandwich ? "sandwich" : "output") +
                                  ", dropout=0, cross_attention=true)");
  }
}

TEST(TransformerBlock, RunsItsLayersInParallel) {
  torch::manual_seed(moved(2));
  const auto x = uniform({B, L, E}, at::kFloat);
  for (const bool shared : {false, true}) {
    auto block = with_random_norms(
        TransformerBlock(block_options(E, H, G).parallel(true).shared_norm(shared)));
    const auto input = block->attention_norm(x);
    EXPECT_EQ(static_cast<bool>(block->feed_forward_norm), !shared);
    const auto other = shared ? input : block->feed_forward_norm(x);
    // The three terms are added in one order or another.
    EXPECT_TRUE(is_close(block(x), x + block->attention(input) + block->feed_forward(other),
                         8 * unit_roundoff(at::kFloat)))
        << shared;
  }
  // A first block whose input is normalized already.
  auto block = with_random_norms(TransformerBlock(block_options(E, H, G).attention_norm(false)));
  EXPECT_FALSE(block->attention_norm);
  const auto own = x + block->attention(x);
  EXPECT_TRUE(block(x).equal(own + block->feed_forward(block->feed_forward_norm(own))));
  EXPECT_EQ(printed(block),
            "heed::TransformerBlock(norm=layer_norm, norm_placement=pre, attention_norm=false, "
            "dropout=0)");
}

/// Where only the feed-forward layer's output is dropped, what is left of it is scaled.
TEST(TransformerBlock, DropsOutputsOfItsFeedForwardLayerAlone) {
  torch::manual_seed(moved(5));
  const auto x = uniform({B, L, E}, at::kFloat);
  TransformerBlock block(block_options(E, H, G).feed_forward_dropout(0.5));
  const auto attended = x + block->attention.ptr()->forward(block->attention_norm->forward(x));
  const auto output = block->feed_forward->forward(block->feed_forward_norm->forward(attended));
  const auto dropped = block.ptr()->forward(x) - attended;
  const auto is_dropped = dropped.abs() < 1e-6 * output.abs().max();
  EXPECT_NEAR(is_dropped.to(at::kFloat).mean().item<double>(), 0.5, 0.1);  // of 704 elements
  const auto expected = output.mul(2.0).masked_fill(is_dropped, 0.0);
  EXPECT_TRUE(dropped.allclose(expected, 0.0, 1e-5));
  block->eval();
  EXPECT_TRUE(block.ptr()->forward(x).equal(attended + output));
  EXPECT_NE(printed(block).find("dropout=0, feed_forward_dropout=0.5"), std::string::npos);
}

/// A layer with its residual connection and the norms of a placement.
at::Tensor scaled_layer(NormPlacement placement, double scale, const at::Tensor& x, Norm norm,
                        Norm output_norm,
                        const std::function<at::Tensor(const at::Tensor&)>& layer) {
  switch (placement) {
    case NormPlacement::pre:
      return x + scale * layer(norm(x));
    case NormPlacement::post:
      return norm(x + scale * layer(x));
    case NormPlacement::sandwich:
      return x + scale * output_norm(layer(norm(x)));
    case NormPlacement::output:
      return x + scale * norm(layer(x));
  }
  return {};
}

TEST(TransformerBlock, ScalesTheOutputsOfItsLayers) {
  torch::manual_seed(moved(8));
  constexpr double kScale = -0.3;
  const auto x = uniform({B, L, E}, at::kDouble).requires_grad_();
  const auto memory = uniform({B, 7, E}, at::kDouble);
  for (const auto placement :
       {NormPlacement::pre, NormPlacement::post, NormPlacement::sandwich, NormPlacement::output}) {
    SCOPED_TRACE(to_string(placement));
    auto block = with_random_norms(TransformerBlock(
        block_options(E, H, G).norm_placement(placement).cross_attention(true).residual_scale(
            kScale)));
    block->to(at::kDouble);
    const auto add = [&](const at::Tensor& input, const Norm& norm, const Norm& output_norm,
                         const auto& layer) {
      return scaled_layer(placement, kScale, input, norm, output_norm, layer);
    };
    auto expected = add(x, block->attention_norm, block->attention_output_norm,
                        [&](const at::Tensor& t) { return block->attention.ptr()->forward(t); });
    expected = add(expected, block->cross_attention_norm, block->cross_attention_output_norm,
                   [&](const at::Tensor& t) {
                     return block->cross_attention.ptr()->forward(t, memory, memory);
                   });
    expected = add(expected, block->feed_forward_norm, block->feed_forward_output_norm,
                   [&](const at::Tensor& t) { return block->feed_forward.ptr()->forward(t); });
    const auto output = block.ptr()->forward(x, TransformerInputs().memory(memory));
    EXPECT_TRUE(is_close(output, expected, 1e-12));  // the same products, scaled
    auto leaves = block->parameters();
    leaves.push_back(x);
    const auto direction = uniform({B, L, E}, at::kDouble);
    // Sums over 22 tokens, which may be added in another order.
    EXPECT_TRUE(are_close(torch::autograd::grad({output}, leaves, {direction}),
                          torch::autograd::grad({expected}, leaves, {direction}), 1e-12));
  }
  auto block = with_random_norms(
      TransformerBlock(block_options(E, H, G).parallel(true).residual_scale(kScale)));
  const auto y = uniform({B, L, E}, at::kFloat);
  const auto layers =
      block->attention(block->attention_norm(y)) + block->feed_forward(block->feed_forward_norm(y));
  // The three terms are added in one order or another.
  EXPECT_TRUE(is_close(block(y), y + kScale * layers, 8 * unit_roundoff(at::kFloat)));
  EXPECT_EQ(printed(block),
            "heed::TransformerBlock(norm=layer_norm, norm_placement=pre, parallel=true, "
            "residual_scale=-0.3, dropout=0)");
}

TEST(TransformerBlock, RefusesOptionsThatContradictEachOther) {
  const auto error = [](const TransformerBlockOptions& options) {
    return value_error([&] { TransformerBlock{options}; });
  };
  const auto plain = [] { return block_options(E, H, G); };
  EXPECT_EQ(error(plain().norm_placement(NormPlacement::post).attention_norm(false)),
            "TransformerBlock: attention_norm must be true for norm_placement post");
  EXPECT_EQ(error(plain().norm_placement(NormPlacement::sandwich).parallel(true)),
            "TransformerBlock: parallel must be false for norm_placement sandwich");
  EXPECT_EQ(error(plain().parallel(true).cross_attention(true)),
            "TransformerBlock: parallel must be false with cross_attention");
  EXPECT_EQ(error(plain().shared_norm(true)),
            "TransformerBlock: shared_norm must be false without parallel or without "
            "attention_norm");
  EXPECT_EQ(error(plain().feed_forward_dropout(1.0)),
            "TransformerBlock: feed_forward_dropout (1) must be in [0, 1)");
  EXPECT_EQ(error(plain().norm_unit_offset(true)),
            "Norm: unit_offset must be false for layer_norm");
  EXPECT_EQ(error(plain().residual_scale(0.0)),
            "TransformerBlock: residual_scale (0) must be finite and not 0");
  EXPECT_EQ(error(plain().residual_scale(INFINITY)),
            "TransformerBlock: residual_scale (inf) must be finite and not 0");
}

/// Windows, rotary embeddings and none, another scale, another inner size.
std::vector<TransformerBlockOptions> different_blocks() {
  auto local = llama_options(E, H, G), global = llama_options(E, H, G),
       without_positions = llama_options(E, H, G);
  local.attention().window(3);
  global.attention().scale(0.5).rotary(RotaryEmbeddingOptions(E / H).base(1e6));
  without_positions.attention().rotary(std::nullopt).window(5);
  without_positions.feed_forward().hidden_dim(48);
  return {local, global, without_positions, local};
}

TEST(Encoder, HasBlocksThatDiffer) {
  torch::manual_seed(moved(3));
  const auto blocks = different_blocks();
  auto encoder = with_random_norms(Encoder(EncoderOptions(blocks)));
  ASSERT_EQ(encoder->blocks->size(), blocks.size());
  const auto x = uniform({B, L, E}, at::kFloat);
  auto expected = x;
  for (size_t i = 0; i < blocks.size(); ++i) {
    // With the same parameters, a block by itself computes the same.
    TransformerBlock alone(blocks[i]);
    const auto theirs = encoder->blocks->ptr(i)->parameters();
    const at::NoGradGuard no_grad;
    for (size_t p = 0; p < theirs.size(); ++p) alone->parameters()[p].copy_(theirs[p]);
    expected = alone(expected);
  }
  EXPECT_TRUE(encoder(x).equal(encoder->final_norm(expected)));
  const auto rotary = [&](size_t i) {
    const auto& own = encoder->blocks->ptr<TransformerBlockImpl>(i)->attention->rotary;
    return own ? own.get() : nullptr;
  };
  EXPECT_EQ(rotary(0), rotary(3));
  EXPECT_NE(rotary(0), rotary(1));
  EXPECT_EQ(rotary(2), nullptr);
}

/// Caches of each kind keep what the widest layer sees, and no layer sees more than its window.
TEST(Decoder, GeneratesWithBlocksThatDiffer) {
  torch::manual_seed(moved(4));
  const at::NoGradGuard no_grad;
  auto blocks = different_blocks();
  blocks[1].residual_scale(0.4);
  auto options = DecoderOptions(V, EncoderOptions(blocks));
  options.embedding_scale(std::sqrt(E)).scores_scale(0.7).softcap(3.0);
  auto model = with_random_norms(Decoder(options));
  const auto tokens = at::randint(V, {1, L}, at::kLong);
  const auto expected = model(tokens);
  auto caches = model->make_caches(1, L);
  auto pages = model->make_paged_cache(/*pages=*/4, PagedCacheOptions().page_size(16));
  EXPECT_FALSE(pages.options().window());
  const auto sequence = pages.add();
  const auto steps = in_chunks(model, tokens, caches, 1);
  std::vector<at::Tensor> paged;
  for (const auto& token : tokens.split(1, 1)) {
    auto step = pages.append({sequence}, {1});
    paged.push_back(model->forward_cached(token, step));
  }
  // Sums of at most 64 terms in another order, four times.
  EXPECT_TRUE(is_close(steps, expected, 1e-5));
  EXPECT_TRUE(is_close(at::cat(paged, 1), expected, 1e-5));

  auto wider = different_blocks();
  wider[1].attention().window(9);
  const Decoder windows(DecoderOptions(V, EncoderOptions(wider)));
  EXPECT_EQ(windows->make_paged_cache(4).options().window(), 9);
}

TEST(Encoder, RefusesBlocksThatDoNotFitTogether) {
  const auto error = [](const std::vector<TransformerBlockOptions>& blocks) {
    return value_error([&] { Encoder{EncoderOptions(blocks)}; });
  };
  const auto plain = block_options(E, H, G);
  EXPECT_EQ(error({}), "EncoderOptions: blocks must not be empty");
  EXPECT_EQ(error({plain, block_options(2 * E, H, G)}),
            "Encoder: blocks[1] emb_dim (64) must equal block emb_dim (32)");
  EXPECT_ERROR("Encoder: blocks size (2) must equal num_layers (3)",
               Encoder{EncoderOptions(plain, 3).blocks({plain, plain})});
  const Decoder decoder(DecoderOptions(V, EncoderOptions({plain, block_options(E, H, 4)})));
  EXPECT_ERROR(
      "Encoder: blocks[1] key/value heads must equal those of blocks[0] in number and size with a "
      "PagedKVCache",
      decoder->make_paged_cache(4));
}

TEST(Decoder, ScalesEmbeddingsAndLimitsScores) {
  torch::manual_seed(moved(5));
  const at::NoGradGuard no_grad;
  const DecoderOptions plain(V, llama_options(E, H, G), 1);
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  Decoder model(DecoderOptions(plain).embedding_scale(0.3).softcap(0.01));
  const auto x = model->token_embedding(tokens) * 0.3F;
  const auto scores = at::matmul(model->stack(x), model->token_embedding->weight.t());
  EXPECT_GT(scores.abs().max().item<double>(), 0.01);  // or the cap would be nothing
  EXPECT_TRUE(is_close(model(tokens), 0.01 * at::tanh(scores / 0.01), 1e-6));
  EXPECT_EQ(printed(model),
            "heed::Decoder(vocab_size=50, tied_head=true, embedding_scale=0.3, softcap=0.01)");
  const auto error = [](const DecoderOptions& options) {
    return value_error([&] { Decoder{options}; });
  };
  EXPECT_EQ(error(DecoderOptions(plain).softcap(0.0)),
            "Decoder: softcap (0) must be finite and above 0");
  EXPECT_EQ(error(DecoderOptions(plain).embedding_scale(INFINITY)),
            "Decoder: embedding_scale (inf) must be finite and not 0");
  EXPECT_EQ(error(DecoderOptions(plain).embedding_scale(0.0)),
            "Decoder: embedding_scale (0) must be finite and not 0");
  EXPECT_EQ(error(DecoderOptions(plain).scores_scale(0.0)),
            "Decoder: scores_scale (0) must be finite and not 0");
  EXPECT_EQ(error(DecoderOptions(plain).scores_scale(-INFINITY)),
            "Decoder: scores_scale (-inf) must be finite and not 0");
  EXPECT_EQ(printed(Decoder(DecoderOptions(plain).scores_scale(0.25).softcap(2.0))),
            "heed::Decoder(vocab_size=50, tied_head=true, scores_scale=0.25, softcap=2)");
}

/// The scale of the embedding, sqrt(E), has the embedding's precision: 5.65685 is 5.65625 in
/// bfloat16.
TEST(Decoder, RoundsTheScaleOfEmbeddings) {
  const at::NoGradGuard no_grad;
  Decoder model(DecoderOptions(V, block_options(E, H, G), 1).embedding_scale(std::sqrt(E)));
  Decoder rounded(DecoderOptions(V, block_options(E, H, G), 1).embedding_scale(5.65625));
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    rounded->parameters()[i].copy_(model->parameters()[i]);
  }
  model->to(at::kBFloat16);
  rounded->to(at::kBFloat16);
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  EXPECT_TRUE(model(tokens).equal(rounded(tokens)));
}

/// For models that are loaded next: no values and, of shapes alone, no memory.
TEST(UninitializedParameters, HaveTheShapesOfOthers) {
  auto block = block_options(E, H, G);
  block.attention().sinks(true);
  const auto options =
      DecoderOptions(V, block, 2)
          .tied_head(false)
          .positions(PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(16));
  const auto expected = Decoder(options)->named_parameters();
  for (const bool shapes_alone : {false, true}) {
    const detail::UninitializedParameters uninitialized(at::dtype(at::kBFloat16), shapes_alone);
    const Decoder model(options);
    const auto parameters = model->named_parameters();
    ASSERT_EQ(parameters.keys(), expected.keys());
    for (const auto& item : parameters) {
      EXPECT_EQ(item.value().sizes(), expected[item.key()].sizes()) << item.key();
      EXPECT_EQ(item.value().scalar_type(), at::kBFloat16) << item.key();
      EXPECT_EQ(item.value().storage().nbytes(), 2 * (shapes_alone ? 1 : item.value().numel()))
          << item.key();
      EXPECT_TRUE(item.value().requires_grad()) << item.key();
    }
  }
  EXPECT_FALSE(detail::UninitializedParameters::are_made());
  EXPECT_EQ(Decoder(options)->parameters()[0].scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace heed::test::block_options_of_models
