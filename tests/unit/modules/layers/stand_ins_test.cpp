// SPDX-License-Identifier: BSD-3-Clause
#include <heed/stand_ins.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/autocast.h>
#include <heed/decoder.h>
#include <heed/linear.h>
#include <torch/utils.h>

#include <memory>
#include <vector>

#include "support/expect.h"
#include "support/seeds.h"
#include "support/transformers.h"

namespace heed::test::of_stand_ins {
namespace {

constexpr int64_t B = 2, L = 7, E = 32, H = 4, G = 2, V = 19;

/// A Linear that keeps half of its weight, and doubles it in each product.
class HalvedLinear : public torch::nn::LinearImpl, public LinearStandIn {
 public:
  explicit HalvedLinear(const torch::nn::LinearImpl& whole) : torch::nn::LinearImpl(whole) {
    halve();
  }

  at::Tensor project(const at::Tensor& x) const override {
    return at::linear(x, 2.0 * weight, bias);
  }

  void initialize(const std::function<void(torch::nn::LinearImpl&)>& draw) override {
    draw(*this);
    halve();
  }

 private:
  void halve() {
    const at::NoGradGuard no_grad;
    weight.mul_(0.5);
  }
};

/// An Embedding that keeps half of its weight.
class HalvedEmbedding : public torch::nn::EmbeddingImpl, public EmbeddingStandIn {
 public:
  explicit HalvedEmbedding(const torch::nn::EmbeddingImpl& whole)
      : torch::nn::EmbeddingImpl(whole) {
    halve();
  }

  at::Tensor embed(const at::Tensor& tokens) const override {
    return 2.0 * at::embedding(weight, tokens);
  }
  at::Tensor scores(const at::Tensor& x) const override { return at::linear(x, 2.0 * weight); }

  void initialize(const std::function<void(at::Tensor&)>& draw) override {
    draw(weight);
    halve();
  }

 private:
  void halve() {
    const at::NoGradGuard no_grad;
    weight.mul_(0.5);
  }
};

/// Layers that nobody could call: forward is not virtual in LibTorch.
struct DoubledLinear : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x) { return 2 * LinearImpl::forward(x); }
};
struct DoubledEmbedding : torch::nn::EmbeddingImpl {
  using torch::nn::EmbeddingImpl::EmbeddingImpl;
  at::Tensor forward(const at::Tensor& x) { return 2 * EmbeddingImpl::forward(x); }
};

TEST(StandIns, ThatNobodyWouldCallAreRefused) {
  Decoder model(DecoderOptions(V, EncoderOptions(block_options(E, H, G), 1)));
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const auto error = [&] { return value_error([&] { model->forward(tokens); }); };
  auto& layer = *model->stack->blocks->ptr<TransformerBlockImpl>(0)->feed_forward;
  const std::shared_ptr<torch::nn::LinearImpl> linear =
      std::make_shared<DoubledLinear>(layer.fc_in->options);
  const auto own = layer.fc_in.ptr();
  layer.fc_in = layer.replace_module("fc_in", linear);
  EXPECT_EQ(
      error(),
      "Linear: the subclass heed::test::of_stand_ins::(anonymous namespace)::DoubledLinear must "
      "derive from "
      "heed::LinearStandIn too, by which heed's modules call it: LinearImpl::forward is not "
      "virtual");
  layer.fc_in = layer.replace_module("fc_in", own);
  EXPECT_EQ(model->forward(tokens).size(2), V);
  const std::shared_ptr<torch::nn::EmbeddingImpl> embedding =
      std::make_shared<DoubledEmbedding>(model->token_embedding->options);
  model->token_embedding = model->replace_module("token_embedding", embedding);
  EXPECT_EQ(error(),
            "Embedding: the subclass heed::test::of_stand_ins::(anonymous "
            "namespace)::DoubledEmbedding must "
            "derive from heed::EmbeddingStandIn too, by which heed's modules call it: "
            "EmbeddingImpl::forward is not virtual");
}

void halve(torch::nn::Module& parent, const char* name, torch::nn::Linear& linear) {
  const std::shared_ptr<torch::nn::LinearImpl> layer = std::make_shared<HalvedLinear>(*linear);
  linear = parent.replace_module(name, layer);
}

/// A copy of a model in which all layers are such.
Decoder with_stand_ins(const Decoder& model) {
  Decoder copy(std::dynamic_pointer_cast<DecoderImpl>(model->clone()));
  for (size_t i = 0; i < copy->stack->blocks->size(); ++i) {
    auto& block = *copy->stack->blocks->ptr<TransformerBlockImpl>(i);
    auto& attention = *block.attention;
    halve(attention, "fc_q", attention.fc_q);
    halve(attention, "fc_k", attention.fc_k);
    halve(attention, "fc_v", attention.fc_v);
    halve(attention, "fc_o", attention.fc_o);
    auto& feed_forward = *block.feed_forward;
    halve(feed_forward, "fc_in", feed_forward.fc_in);
    halve(feed_forward, "fc_gate", feed_forward.fc_gate);
    halve(feed_forward, "fc_out", feed_forward.fc_out);
  }
  if (copy->head) halve(*copy, "head", copy->head);
  const std::shared_ptr<torch::nn::EmbeddingImpl> embedding =
      std::make_shared<HalvedEmbedding>(*copy->token_embedding);
  copy->token_embedding = copy->replace_module("token_embedding", embedding);
  return copy;
}

TEST(StandIns, TakeTheirLayersPlace) {
  for (const bool tied : {false, true}) {
    torch::manual_seed(moved(51));
    const at::NoGradGuard no_grad;
    Decoder model(DecoderOptions(V, llama_options(E, H, G).dropout(0.5), 2).tied_head(tied));
    model->eval();
    auto other = with_stand_ins(model);
    const auto tokens = at::randint(V, {B, L}, at::kLong);
    const auto expected = model->forward(tokens);
    EXPECT_TRUE(is_close(other->forward(tokens), expected, 1e-5));
    auto caches = other->make_caches(B, L);
    EXPECT_TRUE(is_close(other->forward_cached(tokens, caches), expected, 1e-5));
    const auto targets = at::randint(V, {B, L}, at::kLong);
    for (const auto reduction : {LossReduction::mean, LossReduction::none}) {
      const auto options =
          LinearCrossEntropyOptions().reduction(reduction).label_smoothing(0.1).z_loss(0.1);
      EXPECT_TRUE(is_close(other->loss(tokens, targets, {}, options),
                           model->loss(tokens, targets, {}, options), 1e-5));
    }
    EXPECT_ERROR(
        "Decoder: targets[0][0] (19) must be ignore_index (-100), or at least 0 and below "
        "vocab_size (19)",
        other->loss(tokens, at::full_like(tokens, V)));

    // Dropout draws what it would draw with LibTorch's layers.
    model->train();
    other->train();
    torch::manual_seed(moved(52));
    const auto dropped = model->forward(tokens);
    torch::manual_seed(moved(52));
    EXPECT_TRUE(is_close(other->forward(tokens), dropped, 1e-5));
  }
}

/// A module of a user's, which heed knows nothing about.
struct OwnModule : torch::nn::Module {
  OwnModule() { register_module("fc", fc); }
  at::Tensor forward(const at::Tensor& x) const { return linear(fc, x); }
  torch::nn::Linear fc{torch::nn::LinearOptions(E, V)};
};

TEST(StandIns, AreCalledByModulesThatCallLinear) {
  torch::manual_seed(moved(56));
  OwnModule module;
  const auto x = at::randn({B, L, E});
  const auto expected = module.fc->forward(x);
  EXPECT_TRUE(is_close(module.forward(x), expected, 1e-5));
  halve(module, "fc", module.fc);
  EXPECT_TRUE(is_close(module.forward(x), expected, 1e-5));
  EXPECT_FALSE(is_close(module.fc->forward(x), expected, 0.1));

  const std::shared_ptr<torch::nn::LinearImpl> doubled =
      std::make_shared<DoubledLinear>(module.fc->options);
  EXPECT_THROW(linear(torch::nn::Linear(doubled), x), c10::ValueError);
  EXPECT_ERROR("linear: fc must not be empty", linear(nullptr, x));
  EXPECT_ERROR("linear: x must be defined", linear(module.fc, at::Tensor()));
}

/// The errors of a loss are the same with LibTorch's layers and with those in their places.
TEST(StandIns, RefuseTheOptionsOfALossThatTheirLayersRefuse) {
  torch::manual_seed(moved(55));
  const at::NoGradGuard no_grad;
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const auto targets = at::full_like(tokens, 3);
  using Options = LinearCrossEntropyOptions;
  for (const bool tied : {false, true}) {
    Decoder model(DecoderOptions(V, llama_options(E, H, G), 1).tied_head(tied));
    for (const auto& each : {model, with_stand_ins(model)}) {
      const auto error = [&](const at::Tensor& class_weight) {
        return value_error(
            [&] { each->loss(tokens, targets, {}, Options().class_weight(class_weight)); });
      };
      EXPECT_EQ(error(at::ones({V}, at::kLong)),
                "linear_cross_entropy: class_weight dtype (Long) must equal x dtype (Float)");
      EXPECT_EQ(error(at::ones({V}, at::kBool)),
                "linear_cross_entropy: class_weight dtype (Bool) must equal x dtype (Float)");
      EXPECT_EQ(error(at::ones({V}, at::kDouble)),
                "linear_cross_entropy: class_weight dtype (Double) must equal x dtype (Float)");
      EXPECT_EQ(error(at::ones({V}).requires_grad_()),
                "linear_cross_entropy: class_weight must not require grad");
      const Autocast autocast(at::kCPU, at::kBFloat16);
      EXPECT_EQ(error(at::ones({V}, at::kLong)),
                "linear_cross_entropy: class_weight dtype (Long) must equal x dtype (BFloat16)");
      each->loss(tokens, targets, {}, Options().class_weight(at::ones({V})));
    }
  }
}

/// A layer whose scores have another dtype than its input.
class LinearOfIntegers : public HalvedLinear {
 public:
  using HalvedLinear::HalvedLinear;
  at::Tensor project(const at::Tensor& x) const override {
    return HalvedLinear::project(x).to(at::kLong);
  }
};

TEST(StandIns, RefuseWhatMakesNoLoss) {
  const auto x = at::zeros({B, L, E}), targets = at::full({B, L}, 3, at::kLong);
  const torch::nn::LinearImpl layer(torch::nn::LinearOptions(E, V));
  const HalvedLinear halved(layer);
  const LinearOfIntegers integers(layer);
  const LinearCrossEntropyOptions options;
  EXPECT_ERROR("linear_cross_entropy: targets must be defined",
               halved.loss(x, at::Tensor(), options));
  EXPECT_ERROR("linear_cross_entropy: targets device (meta) must equal x device (cpu)",
               halved.loss(x, targets.to(at::kMeta), options));
  const auto with_bias = [](const at::Tensor& bias) {
    return LinearCrossEntropyOptions().bias(bias);
  };
  EXPECT_ERROR("linear_cross_entropy: bias must be defined",
               halved.loss(x, targets, with_bias(at::Tensor())));
  EXPECT_ERROR("linear_cross_entropy: bias rank (2) must equal 1; bias [1, 19]",
               halved.loss(x, targets, with_bias(at::zeros({1, V}))));
  EXPECT_ERROR("linear_cross_entropy: bias dim 0 (18) must equal scores dim 1 (19)",
               halved.loss(x, targets, with_bias(at::zeros({V - 1}))));
  EXPECT_ERROR("linear_cross_entropy: bias device (meta) must equal scores device (cpu)",
               halved.loss(x, targets, with_bias(at::zeros({V}, at::kMeta))));
  EXPECT_ERROR("linear_cross_entropy: scores dtype (Long) must be Float, Double, BFloat16 or Half",
               integers.loss(x, targets, options));
}

TEST(StandIns, AreInitializedAsTheirLayersAre) {
  torch::manual_seed(moved(53));
  Decoder model(DecoderOptions(V, llama_options(E, H, G), 2));
  auto other = with_stand_ins(model);
  torch::manual_seed(moved(54));
  model->reset_parameters();
  torch::manual_seed(moved(54));
  other->reset_parameters();
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  EXPECT_TRUE(is_close(other->forward(tokens), model->forward(tokens), 1e-5));
}

}  // namespace
}  // namespace heed::test::of_stand_ins
