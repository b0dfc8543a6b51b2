// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/linear.h>
#include <heed/model_cost.h>
#include <heed/pack_weights.h>
#include <heed/paged_kv_cache.h>
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

/// Tests of the layers that a block can have besides GroupQueryAttention and FeedForward.

namespace heed::test::block_layers {
namespace {

constexpr int64_t B = 2, E = 32, H = 4, G = 2, L = 9, V = 40;

MixtureOfExpertsOptions mixture_options() {
  const auto expert =
      FeedForwardOptions(E).hidden_dim(24).activation(Activation::swiglu).bias(false);
  return {expert, /*expert_num=*/6, /*top_k=*/2};
}

/// A user's layer: x * tanh(fc(x)).
class GatedImpl : public torch::nn::Cloneable<GatedImpl> {
 public:
  explicit GatedImpl(int64_t width) : width(width) { reset(); }
  void reset() override {
    fc = register_module("fc", torch::nn::Linear(width, width));
    dropout = register_module("dropout", torch::nn::Dropout(0.0));
  }
  at::Tensor forward(const at::Tensor& x) { return dropout(x * linear(fc, x).tanh()); }

  int64_t width;
  torch::nn::Linear fc{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Gated);

/// A user's layer that LibTorch cannot clone.
class WithoutCloneImpl : public torch::nn::Module {
 public:
  WithoutCloneImpl() { fc = register_module("fc", torch::nn::Linear(E, E)); }
  at::Tensor forward(const at::Tensor& x) { return linear(fc, x); }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(WithoutClone);

/// A user's layer with a fault: it returns a part of its input.
class WrongShapeImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) { return x.narrow(-1, 0, 3); }
};
TORCH_MODULE(WrongShape);

TransformerBlockOptions with_layer(FeedForwardLayer layer) {
  auto options = llama_options(E, H, G);
  options.feed_forward(std::move(layer));
  return options;
}

TransformerBlockOptions with_mixture() { return with_layer(mixture_options()); }

TransformerBlockOptions with_latent_attention() {
  return with_mixture().attention(
      LatentAttentionOptions(E, H, 16).plain_head_dim(8).rotary_head_dim(4).value_head_dim(8));
}

TransformerBlockOptions with_users_layer() {
  return with_layer([] { return torch::nn::AnyModule(Gated(E)); });
}

std::vector<std::pair<std::string, TransformerBlockOptions>> kinds() {
  return {{"mixture", with_mixture()},
          {"the user's", with_users_layer()},
          {"latent attention", with_latent_attention()}};
}

Decoder decoder_of(const TransformerBlockOptions& block) {
  Decoder model(DecoderOptions(V, block, 2));
  model->eval();
  return model;
}

TEST(BlockLayers, AreApplied) {
  torch::manual_seed(moved(1));
  const auto x = uniform({B, L, E}, at::kFloat);
  for (const auto& [name, options] : kinds()) {
    SCOPED_TRACE(name);
    TransformerBlock block(options);
    block->eval();
    EXPECT_TRUE(block->feed_forward.is_empty());
    const auto layer = block->feed_forward_module();
    const auto apply = [&](const at::Tensor& input) {
      auto* mixture = layer->as<MixtureOfExperts>();
      return mixture ? mixture->forward(input) : layer->as<Gated>()->forward(input);
    };
    auto* latent = block->attention_module()->as<LatentAttention>();
    const auto normed = block->attention_norm->forward(x);
    const auto attended = x + (latent ? latent->forward(normed) : block->attention(normed));
    const auto expected = attended + apply(block->feed_forward_norm->forward(attended));
    EXPECT_TRUE(block->forward(x).equal(expected));
    // Weights that are asked for take another path.
    EXPECT_TRUE(are_alike({std::get<0>(block->forward_with_weights(x))}, {expected}, 1e-6));
    TransformerBlock parallel(TransformerBlockOptions(options).parallel(true));
    EXPECT_EQ(parallel->forward(x).sizes(), x.sizes());
  }
}

TEST(BlockLayers, DecodeFromCaches) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  for (const auto& [name, options] : kinds()) {
    SCOPED_TRACE(name);
    auto model = decoder_of(options);
    expect_decodes_from_caches(model, tokens, 1);
  }
}

TEST(BlockLayers, AreTrainedWithCheckpointsAsWithout) {
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  for (const auto& [name, options] : kinds()) {
    SCOPED_TRACE(name);
    expect_same_with_checkpoints({V, EncoderOptions(options, 2)}, tokens, 3);
  }
}

TEST(BlockLayers, AreCopiedAndSaved) {
  torch::manual_seed(moved(4));
  const at::NoGradGuard no_grad;
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const TemporaryFolder folder("block_layers");
  const auto path = (folder.path() / "model.safetensors").string();
  for (const auto& [name, options] : kinds()) {
    SCOPED_TRACE(name);
    auto model = decoder_of(options);
    expect_is_copied_and_saved(model, decoder_of(options), tokens, path);
  }
}

TEST(BlockLayers, ArePacked) {
  torch::manual_seed(moved(5));
  const at::NoGradGuard no_grad;
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  for (const auto& [name, options] : kinds()) {
    SCOPED_TRACE(name);
    auto model = decoder_of(options);
    const auto expected = model->forward(tokens);
    pack_weights(*model, PackFormat::float32);
    EXPECT_TRUE(are_alike({model->forward(tokens)}, {expected}, 1e-5));
  }
}

TEST(BlockLayers, AreInitializedUnlessTheyAreTheUsers) {
  torch::manual_seed(moved(6));
  Encoder mixed(EncoderOptions(with_mixture(), 8));
  const auto& block = *mixed->blocks->ptr<TransformerBlockImpl>(0);
  const auto* mixture = block.feed_forward_module()->as<MixtureOfExperts>();
  const auto deviation_of = [](const at::Tensor& weight) { return weight.std().item<double>(); };
  const auto& expert = *mixture->experts->ptr<FeedForwardImpl>(3);
  // A normal deviate's own deviation is within 5 % of the true one for 768 draws.
  EXPECT_NEAR(deviation_of(expert.fc_in->weight), 0.02, 0.002);
  EXPECT_NEAR(deviation_of(expert.fc_out->weight), 0.02 / 4, 0.0005);  // sqrt(2 * 8) is 4
  Encoder users(EncoderOptions(with_users_layer(), 1));
  const auto layer = users->blocks->ptr<TransformerBlockImpl>(0)->feed_forward_module();
  // LibTorch's own: uniform up to 1 / sqrt(E).
  EXPECT_NEAR(deviation_of(layer->as<Gated>()->fc->weight), 1 / std::sqrt(3.0 * E), 0.02);
}

TEST(BlockLayers, HaveCosts) {
  const auto cost_of = [](const TransformerBlockOptions& options, const std::string& name) {
    const auto cost = model_cost(*Encoder(EncoderOptions(options, 2)), B, L);
    for (const auto& part : cost.parts) {
      if (part.name == name) return part;
    }
    ADD_FAILURE() << name;
    return ModelCost::Part();
  };
  auto options = mixture_options();
  options.shared(options.expert()).shared_gate(true);
  const auto mixture = cost_of(with_layer(options), "mixture of experts");
  const int64_t expert = 3 * E * 24, router = 6 * E, gate = E;
  EXPECT_EQ(mixture.parameters, 2 * (7 * expert + router + gate));
  EXPECT_EQ(mixture.macs, 2 * B * L * (3 * expert + router + gate));  // 2 chosen and the shared one
  const auto users = cost_of(with_users_layer(), "feed-forward");
  EXPECT_EQ(users.parameters, 2 * (E * E + E));
  EXPECT_EQ(users.macs, 2 * B * L * E * E);
}

TEST(BlockLayers, RecordRoutings) {
  torch::manual_seed(moved(7));
  auto stack = EncoderOptions(with_mixture(), 2);
  Decoder model(DecoderOptions(V, stack));
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const RoutingRecord record;
  model->loss(tokens, tokens.roll(1, 1));
  ASSERT_EQ(record.routings().size(), 2);
  EXPECT_EQ(record.routings()[1].logits.size(0), B * L);
  Decoder checkpointed(DecoderOptions(V, stack.checkpointing(true)));
  EXPECT_ERROR(
      "Encoder: checkpointing must be false while a RoutingRecord exists: blocks are computed "
      "again in the backward pass, after the losses",
      checkpointed->forward(tokens));
  checkpointed->eval();  // which does not compute again
  checkpointed->forward(tokens);
}

TEST(BlockLayers, AreRefusedWhereTheyDoNotFit) {
  const auto x = at::zeros({B, L, E});
  const auto make = [](FeedForwardLayer layer) {
    return TransformerBlock(with_layer(std::move(layer)));
  };
  auto wide = mixture_options();
  wide.expert().emb_dim(E + 1);
  EXPECT_ERROR("TransformerBlock: feed_forward emb_dim (33) must equal attention emb_dim (32)",
               make(wide));
  EXPECT_ERROR(
      "TransformerBlock: feed_forward must be a function that makes a layer, not an empty one",
      make(LayerFactory()));
  EXPECT_ERROR("TransformerBlock: feed_forward must return a layer, not an empty AnyModule",
               make([] { return torch::nn::AnyModule(); }));
  auto cut = make([] { return torch::nn::AnyModule(WrongShape()); });
  EXPECT_ERROR(
      "TransformerBlock: feed_forward must return the shape of its input [2, 9, 32]; it returned "
      "[2, 9, 3]",
      cut->forward(x));
  EXPECT_ERROR(
      "TransformerBlockOptions: feed_forward must be FeedForwardOptions to be read; "
      "feed_forward_layer() returns any kind",
      with_mixture().feed_forward());
  auto uncloned = make([] { return torch::nn::AnyModule(WithoutClone()); });
  uncloned->forward(x);
  EXPECT_THAT(error_text<c10::Error>([&] { uncloned->clone(); }),
              ::testing::HasSubstr("clone() has not been implemented for"));
}

TEST(BlockLayers, DropNothingWithACache) {
  const at::NoGradGuard no_grad;
  auto dropping = mixture_options();
  dropping.expert().dropout(0.1);
  TransformerBlockOptions options = with_layer(dropping);
  options.attention().causal(true);
  TransformerBlock block(options);
  auto cache = block->make_cache(B, L);
  const auto x = at::zeros({B, 1, E});
  EXPECT_ERROR(
      "TransformerBlock: feed_forward dropout (0.1) must be 0 in training mode with a cache: call "
      "eval()",
      block->forward_cached(x, cache));
  auto users = with_layer([] {
    Gated layer(E);
    layer->dropout->options.p(0.2);
    return torch::nn::AnyModule(layer);
  });
  users.attention().causal(true);
  TransformerBlock own(users);
  EXPECT_ERROR(
      "TransformerBlock: feed_forward dropout (0.2) must be 0 in training mode with a cache: call "
      "eval()",
      own->forward_cached(x, cache));
  own->eval();
  own->forward_cached(x, cache);
}

}  // namespace
}  // namespace heed::test::block_layers
