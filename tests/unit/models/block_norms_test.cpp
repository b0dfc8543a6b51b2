// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/linear.h>
#include <heed/model_cost.h>
#include <heed/pack_weights.h>
#include <heed/paged_kv_cache.h>
#include <heed/text_encoder.h>
#include <heed/weights.h>
#include <torch/nn/modules/dropout.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/temporary_folder.h"
#include "support/transformers.h"
#include "unit/models/decoder_checks.h"
#include "unit/models/reference_block.h"

/// Tests of blocks and stacks whose norms are of a class of the user's.

namespace heed::test::block_norms {
namespace {

constexpr int64_t B = 2, E = 32, H = 4, G = 2, L = 9, V = 40;

/// A user's norm: fc(x) / (1 + the largest |x|).
class LargestNormImpl : public torch::nn::Cloneable<LargestNormImpl> {
 public:
  explicit LargestNormImpl(int64_t width) : width(width) { reset(); }
  void reset() override {
    fc = register_module("fc", torch::nn::Linear(width, width));
    dropout = register_module("dropout", torch::nn::Dropout(0.0));
  }
  at::Tensor forward(const at::Tensor& x) {
    return dropout(linear(fc, x) / (1.0 + x.abs().amax(-1, /*keepdim=*/true)));
  }

  int64_t width;
  torch::nn::Linear fc{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(LargestNorm);

/// A user's norm that LibTorch cannot clone.
class NormWithoutCloneImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TORCH_MODULE(NormWithoutClone);

/// A user's norm with a fault: it returns a part of its input.
class CutNormImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) { return x.narrow(-1, 0, 3); }
};
TORCH_MODULE(CutNorm);

LayerFactory largest() {
  return [] { return torch::nn::AnyModule(LargestNorm(E)); };
}

/// llama_options without what only a Norm has.
TransformerBlockOptions decoder_block() {
  auto options = block_options(E, H, G);
  options.attention().causal(true).rotary(RotaryEmbeddingOptions(E / H));
  return options.norm(largest());
}

Decoder make_decoder() {
  Decoder model(DecoderOptions(V, decoder_block(), 2));
  model->eval();
  return model;
}

TEST(OwnNorms, AreApplied) {
  torch::manual_seed(moved(1));
  for (const auto placement :
       {NormPlacement::pre, NormPlacement::post, NormPlacement::sandwich, NormPlacement::output}) {
    SCOPED_TRACE(to_string(placement));
    auto options = block_options(E, H, G).cross_attention(true);
    options.attention().key_bias(false);  // softmax cancels it: its gradient is rounding alone
    TransformerBlock block(options.norm(largest()).norm_placement(placement));
    block->to(at::kDouble);
    auto reference = reference_of(block);
    reference.own_norm = [&](const std::string& name, const at::Tensor& x) {
      return reference.linear(name + ".fc", x) / (1.0 + x.abs().amax(-1, /*keepdim=*/true));
    };
    expect_is_the_reference(block, reference, uniform({B, L, E}, at::kDouble),
                            uniform({B, 7, E}, at::kDouble));
    const bool sandwich = placement == NormPlacement::sandwich;
    EXPECT_EQ(block->norm_module("attention_output_norm") != nullptr, sandwich);
    EXPECT_TRUE(block->attention_norm.is_empty());
    EXPECT_NE(block->norm_module("feed_forward_norm")->as<LargestNorm>(), nullptr);
  }
}

TEST(OwnNorms, AreThoseOfParallelLayers) {
  torch::manual_seed(moved(2));
  const auto x = uniform({B, L, E}, at::kFloat);
  TransformerBlock block(block_options(E, H, G).parallel(true).shared_norm(true).norm(largest()));
  EXPECT_EQ(block->norm_module("feed_forward_norm"), nullptr);
  const auto input = block->norm_module("attention_norm")->as<LargestNorm>()->forward(x);
  const auto expected = x + block->attention(input) + block->feed_forward(input);
  EXPECT_TRUE(are_alike({block(x)}, {expected}, 8 * unit_roundoff(at::kFloat)));
  EXPECT_EQ(printed(block),
            "heed::TransformerBlock(norm=own, norm_placement=pre, parallel=true, shared_norm=true, "
            "dropout=0)");
  TransformerBlock plain(block_options(E, H, G));
  EXPECT_EQ(plain->norm_module("attention_norm"), plain->attention_norm.ptr());
  EXPECT_EQ(plain->options.norm(), NormKind::layer_norm);
}

TEST(OwnNorms, DecodeFromCaches) {
  torch::manual_seed(moved(3));
  const at::NoGradGuard no_grad;
  auto model = make_decoder();
  EXPECT_NE(model->stack->final_norm_module()->as<LargestNorm>(), nullptr);
  EXPECT_TRUE(model->stack->final_norm.is_empty());
  expect_decodes_from_caches(model, at::randint(V, {B, L}, at::kLong), 2);
}

TEST(OwnNorms, AreTrainedWithCheckpointsAsWithout) {
  expect_same_with_checkpoints({V, EncoderOptions(decoder_block(), 2)},
                               at::randint(V, {B, L}, at::kLong), 4);
}

TEST(OwnNorms, AreCopiedSavedAndPacked) {
  torch::manual_seed(moved(5));
  const at::NoGradGuard no_grad;
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const TemporaryFolder folder("block_norms");
  auto model = make_decoder();
  const auto expected = model->forward(tokens);
  const auto path = (folder.path() / "model.safetensors").string();
  auto copy = expect_is_copied_and_saved(model, make_decoder(), tokens, path);
  pack_weights(*copy, PackFormat::float32);
  EXPECT_TRUE(are_alike({copy->forward(tokens)}, {expected}, 1e-5));
}

TEST(OwnNorms, AreInitializedByTheirClass) {
  torch::manual_seed(moved(6));
  Encoder stack(EncoderOptions(block_options(E, H, G).norm(largest()), 1));
  const auto norm = stack->blocks->ptr<TransformerBlockImpl>(0)->norm_module("attention_norm");
  // LibTorch's own: uniform up to 1 / sqrt(E).
  EXPECT_NEAR(norm->as<LargestNorm>()->fc->weight.std().item<double>(), 1 / std::sqrt(3.0 * E),
              0.02);
}

TEST(OwnNorms, HaveCosts) {
  const auto cost = model_cost(*make_decoder()->stack, B, L);
  for (const auto& part : cost.parts) {
    if (part.name != "norm") continue;
    EXPECT_EQ(part.count, 5);
    EXPECT_EQ(part.parameters, 5 * (E * E + E));
    EXPECT_EQ(part.macs, 5 * B * L * E * E);
    return;
  }
  ADD_FAILURE() << "no part is named norm";
}

TEST(OwnNorms, AreRefusedWhereTheyDoNotFit) {
  const auto x = at::zeros({B, L, E});
  const auto make = [](LayerFactory norm) {
    return TransformerBlock(block_options(E, H, G).norm(std::move(norm)));
  };
  EXPECT_ERROR("TransformerBlock: norm must be a function that makes a layer, not an empty one",
               make(LayerFactory()));
  EXPECT_ERROR("TransformerBlock: norm must return a layer, not an empty AnyModule",
               make([] { return torch::nn::AnyModule(); }));
  auto cut = make([] { return torch::nn::AnyModule(CutNorm()); });
  EXPECT_ERROR(
      "TransformerBlock: norm must return the shape of its input [2, 9, 32]; it returned [2, 9, 3]",
      cut->forward(x));
  auto uncloned = make([] { return torch::nn::AnyModule(NormWithoutClone()); });
  EXPECT_THAT(error_text<c10::Error>([&] { uncloned->clone(); }),
              ::testing::HasSubstr("clone() has not been implemented for"));
  auto stack = Encoder(
      EncoderOptions(TransformerBlockOptions(uncloned->options).norm(NormKind::rms_norm), 1));
  EXPECT_NE(stack->clone(), nullptr);
  EXPECT_ERROR(
      "TransformerBlockOptions: norm must be a NormKind to be read; norm_layer() returns any kind",
      decoder_block().norm());
  EXPECT_ERROR(
      "TransformerBlock: norm_eps, norm_bias and norm_unit_offset must not be given with a norm of "
      "your own",
      TransformerBlock(decoder_block().norm_eps(1e-6)));
  EXPECT_ERROR(
      "TransformerBlock: name (\"norm\") must be that of a norm, such as "
      "\"attention_norm\"",
      cut->norm_module("norm"));
  EXPECT_ERROR("Decoder: embedding_norm must be false with norms of your own",
               Decoder(DecoderOptions(V, decoder_block(), 1).embedding_norm(true)));
  EXPECT_ERROR(
      "TextEncoder: embedding_norm must be false with norms of your own",
      TextEncoder(TextEncoderOptions(V, EncoderOptions(decoder_block(), 1)).embedding_norm(true)));
}

TEST(OwnNorms, DropNothingWithACache) {
  const at::NoGradGuard no_grad;
  auto options = decoder_block();
  options.norm([] {
    LargestNorm norm(E);
    norm->dropout->options.p(0.2);
    return torch::nn::AnyModule(norm);
  });
  TransformerBlock block(options);
  auto cache = block->make_cache(B, L);
  const auto x = at::zeros({B, 1, E});
  EXPECT_ERROR(
      "TransformerBlock: norm dropout (0.2) must be 0 in training mode with a cache: call eval()",
      block->forward_cached(x, cache));
  block->eval();
  block->forward_cached(x, cache);
}

}  // namespace
}  // namespace heed::test::block_norms
