// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_make_dual.h>
#include <ATen/ops/_unpack_dual.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/feed_forward.h>
#include <heed/norm.h>
#include <heed/position_embedding.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <cmath>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test {
namespace {

TEST(Norm, IsItsDefinition) {
  torch::manual_seed(moved(1));
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const auto kind : {NormKind::layer_norm, NormKind::rms_norm}) {
      Norm norm(NormOptions(16).kind(kind).eps(1e-3));
      norm->to(dtype);
      {
        const at::NoGradGuard no_grad;
        for (const auto& parameter : norm->parameters()) parameter.uniform_(0.5, 1.5);
      }
      const auto x = uniform({2, 3, 16}, dtype);
      const auto wide = x.to(at::kDouble);
      const auto centred =
          kind == NormKind::layer_norm ? wide - wide.mean(-1, /*keepdim=*/true) : wide;
      auto expected = centred / (centred.square().mean(-1, /*keepdim=*/true) + 1e-3).sqrt() *
                      norm->weight.to(at::kDouble);
      if (kind == NormKind::layer_norm) expected = expected + norm->bias.to(at::kDouble);
      // Values up to 6: a few roundoffs of them.
      EXPECT_TRUE(is_close(norm(x), expected, 24 * unit_roundoff(dtype))) << to_string(kind);
      // One vector alone.
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(is_close(norm(x[1][2]), expected[1][2], 24 * unit_roundoff(dtype)))
          << to_string(kind);
    }
  }
  EXPECT_EQ(RMSNorm(8)->options.kind(), NormKind::rms_norm);
  EXPECT_EQ(RMSNorm(8)->parameters().size(), 1);
  EXPECT_EQ(Norm(NormOptions(8).bias(false))->parameters().size(), 1);
  EXPECT_EQ(printed(*RMSNorm(8)), "heed::Norm(dim=8, kind=rms_norm, eps=1e-06)");
  const auto copy = std::dynamic_pointer_cast<NormImpl>(RMSNorm(8)->clone());
  EXPECT_EQ(copy->options.kind(), NormKind::rms_norm);
}

/// As LibTorch's norms do, for parameters that are trained in float32: a weight is not rounded.
TEST(Norm, TakesHalfTypesWithParametersInFloat32) {
  torch::manual_seed(moved(6));
  for (const auto& device : devices()) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      for (const auto& options : {NormOptions(16), NormOptions(16).kind(NormKind::rms_norm),
                                  NormOptions(16).kind(NormKind::rms_norm).unit_offset(true)}) {
        Norm norm(options);
        norm->to(device);
        {
          const at::NoGradGuard no_grad;
          for (const auto& parameter : norm->parameters()) parameter.uniform_(0.5, 1.5);
        }
        const auto x = uniform({2, 3, 16}, at::device(device).dtype(dtype)).requires_grad_();
        const auto wide = x.detach().to(at::kFloat).requires_grad_();
        const auto output = norm(x), expected = norm(wide);
        EXPECT_EQ(output.scalar_type(), dtype);
        EXPECT_TRUE(output.equal(expected.to(dtype))) << to_string(options.kind());
        const auto direction = uniform({2, 3, 16}, at::device(device).dtype(dtype));
        const auto found = torch::autograd::grad({output}, {x, norm->weight}, {direction});
        const auto wanted =
            torch::autograd::grad({expected}, {wide, norm->weight}, {direction.to(at::kFloat)});
        EXPECT_EQ(found[0].scalar_type(), dtype);
        EXPECT_EQ(found[1].scalar_type(), at::kFloat);
        // Rounded once, of sums that may be in another order.
        EXPECT_TRUE(are_alike(found, wanted, 2 * unit_roundoff(dtype)));
      }
    }
  }
  Norm norm(NormOptions(8).kind(NormKind::rms_norm));
  EXPECT_ERROR("Norm: x dtype (Double) must equal weight dtype (Float)",
               norm(at::zeros({2, 8}, at::kDouble)));
  EXPECT_ERROR("Norm: x dtype (Long) must be Float, Double, BFloat16 or Half",
               norm(at::zeros({2, 8}, at::kLong)));
  norm->to(at::kBFloat16);
  EXPECT_ERROR("Norm: x dtype (Float) must equal weight dtype (BFloat16)", norm(at::zeros({2, 8})));
}

/// Gemma's: x / rms * (1 + weight), whose sum bfloat16 could not hold: 1 + 2^-8 would be 1.
TEST(Norm, MultipliesByOneMoreThanItsWeight) {
  torch::manual_seed(moved(5));
  const auto options = NormOptions(16).kind(NormKind::rms_norm).eps(1e-3).unit_offset(true);
  EXPECT_EQ(Norm(options)->weight.abs().max().item<double>(), 0.0);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    Norm norm(options);
    norm->to(dtype);
    {
      const at::NoGradGuard no_grad;
      norm->weight.uniform_(-0.1, 0.1);
      norm->weight[0].fill_(0.00390625);
    }
    const auto x = uniform({2, 3, 16}, dtype).requires_grad_();
    const auto definition = [&](const at::Tensor& row, const at::Tensor& weight) {
      return row / (row.square().mean(-1, /*keepdim=*/true) + 1e-3).sqrt() * (1.0 + weight);
    };
    const auto wide_x = x.detach().to(at::kDouble).requires_grad_();
    const auto wide_weight = norm->weight.detach().to(at::kDouble).requires_grad_();
    const auto expected = definition(wide_x, wide_weight);
    const auto output = norm(x);
    // Values up to 2.5, rounded once and computed by a few roundings in float32 or better.
    const auto tolerance = 4 * unit_roundoff(dtype) +
                           16 * unit_roundoff(dtype == at::kDouble ? at::kDouble : at::kFloat);
    EXPECT_TRUE(is_close(output, expected, tolerance)) << dtype;
    const auto gradient = uniform(x.sizes(), dtype);
    const auto found = torch::autograd::grad({output}, {x, norm->weight}, {gradient});
    const auto wanted =
        torch::autograd::grad({expected}, {wide_x, wide_weight}, {gradient.to(at::kDouble)});
    for (size_t i = 0; i < 2; ++i) {
      // Sums of six products of up to 3.
      EXPECT_TRUE(is_close(found[i], wanted[i], 6 * tolerance)) << dtype << ' ' << i;
    }
    // By LibTorch's operators: a tangent reaches no kernel.
    const auto level = torch::autograd::ForwardADLevel::get_next_idx();
    const at::NoGradGuard no_grad;
    const auto dual = at::_make_dual(x, x, static_cast<int64_t>(level));
    const auto primal = std::get<0>(at::_unpack_dual(norm(dual), static_cast<int64_t>(level)));
    torch::autograd::ForwardADLevel::release_idx(level);
    EXPECT_TRUE(is_close(primal, expected, tolerance)) << dtype;
  }
  EXPECT_EQ(printed(Norm(options)),
            "heed::Norm(dim=16, kind=rms_norm, eps=0.001, unit_offset=true)");
  EXPECT_ERROR("Norm: unit_offset must be false for layer_norm",
               Norm(NormOptions(8).unit_offset(true)));
}

TEST(Norm, RefusesWhatDoesNotFit) {
  RMSNorm norm(8);
  EXPECT_ERROR("Norm: x dim 1 (7) must equal dim (8); x [2, 7]", norm(at::ones({2, 7})));
  EXPECT_ERROR("Norm: x dtype (Double) must equal weight dtype (Float)",
               norm(at::ones({2, 8}, at::kDouble)));
  EXPECT_ERROR("Norm: dim (0) must be at least 1", RMSNorm(int64_t{0}));
  EXPECT_ERROR("Norm: eps (-1) must be finite and at least 0", RMSNorm(4, -1.0));
}

TEST(FeedForward, IsItsDefinition) {
  torch::manual_seed(moved(2));
  const auto x = uniform({2, 5, 12}, at::kFloat);
  const std::vector<std::tuple<Activation, bool, at::Tensor (*)(const at::Tensor&)>> kinds = {
      {Activation::relu, false, [](const at::Tensor& t) { return at::relu(t); }},
      {Activation::gelu, false, [](const at::Tensor& t) { return at::gelu(t); }},
      {Activation::gelu_tanh, false, [](const at::Tensor& t) { return at::gelu(t, "tanh"); }},
      {Activation::silu, false, [](const at::Tensor& t) { return at::silu(t); }},
      {Activation::tanh, false, [](const at::Tensor& t) { return at::tanh(t); }},
      {Activation::gelu_sigmoid, false,
       [](const at::Tensor& t) { return t * at::sigmoid(1.702 * t); }},
      {Activation::swiglu, true, [](const at::Tensor& t) { return at::silu(t); }},
      {Activation::geglu, true, [](const at::Tensor& t) { return at::gelu(t); }},
      {Activation::geglu_tanh, true, [](const at::Tensor& t) { return at::gelu(t, "tanh"); }},
      {Activation::reglu, true, [](const at::Tensor& t) { return at::relu(t); }}};
  for (const auto& [activation, gated, function] : kinds) {
    for (const bool bias : {true, false}) {
      FeedForward layer(FeedForwardOptions(12).activation(activation).bias(bias));
      EXPECT_EQ(layer->fc_in->weight.size(0), gated ? 32 : 48);
      EXPECT_EQ(layer->parameters().size(), (gated ? 3U : 2U) * (bias ? 2U : 1U));
      auto hidden = function(linear64(gated ? layer->fc_gate : layer->fc_in, x));
      if (gated) hidden = hidden * linear64(layer->fc_in, x);
      EXPECT_TRUE(is_close(layer(x), linear64(layer->fc_out, hidden.to(at::kFloat)), 1e-6))
          << to_string(activation);
    }
  }
}

FeedForwardOptions limited(double beta, std::optional<double> limit, double offset) {
  return FeedForwardOptions(12)
      .activation(Activation::swiglu)
      .swiglu_beta(beta)
      .swiglu_limit(limit)
      .swiglu_offset(offset);
}

TEST(FeedForward, LimitsSwiglu) {
  torch::manual_seed(moved(12));
  const auto x = uniform({2, 5, 12}, at::kFloat).mul(4);
  for (const auto& options :
       {limited(1.702, 0.5, 1.0), limited(1.0, 0.25, 0.0), limited(-0.5, std::nullopt, 0.25)}) {
    FeedForward layer(options);
    const auto limit = options.swiglu_limit().value_or(1e9);
    const auto gate = linear64(layer->fc_gate, x), up = linear64(layer->fc_in, x);
    EXPECT_EQ(gate.gt(limit).any().item<bool>(), options.swiglu_limit().has_value());
    const auto g = at::minimum(gate, at::full_like(gate, limit));
    const auto below = at::minimum(up, at::full_like(up, limit));
    const auto u = at::maximum(below, at::full_like(up, -limit)) + options.swiglu_offset();
    const auto hidden = g / (1 + (-options.swiglu_beta() * g).exp()) * u;
    EXPECT_TRUE(is_close(layer(x), linear64(layer->fc_out, hidden.to(at::kFloat)), 1e-6));
  }
  EXPECT_EQ(printed(*FeedForward(limited(1.702, 7.0, 1.0))),
            "heed::FeedForward(emb_dim=12, hidden_dim=32, activation=swiglu, dropout=0, "
            "swiglu_beta=1.702, swiglu_limit=7, swiglu_offset=1)");
  EXPECT_ERROR("FeedForward: swiglu_beta (inf) must be finite",
               FeedForward(limited(INFINITY, std::nullopt, 0.0)));
  EXPECT_ERROR("FeedForward: swiglu_offset (nan) must be finite",
               FeedForward(limited(1.0, std::nullopt, NAN)));
  for (const double limit : {0.0, -1.0, double{INFINITY}}) {
    EXPECT_ERROR(fmt::format("FeedForward: swiglu_limit ({}) must be finite and above 0", limit),
                 FeedForward(limited(1.0, limit, 0.0)));
  }
  EXPECT_ERROR(
      "FeedForward: swiglu_beta, swiglu_limit and swiglu_offset must not be given for activation "
      "geglu",
      FeedForward(limited(1.0, 7.0, 0.0).activation(Activation::geglu)));
}

/// Work that nothing but operators can do is left to them.
TEST(FeedForward, IsTracedAndPropagatesTangents) {
  FeedForward layer(FeedForwardOptions(12).activation(Activation::swiglu));
  for (auto& parameter : layer->parameters()) parameter.requires_grad_(false);
  const auto x = uniform({2, 5, 12}, at::kFloat), tangent = uniform({2, 5, 12}, at::kFloat);
  const auto [state, outputs] = torch::jit::tracer::trace(
      {x},
      [&](torch::jit::Stack inputs) -> torch::jit::Stack { return {layer(inputs[0].toTensor())}; },
      [](const torch::autograd::Variable&) { return std::string(); });
  EXPECT_NE(state->graph->toString().find("aten::silu("), std::string::npos)
      << state->graph->toString();

  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  const auto dual = at::_make_dual(x, tangent, static_cast<int64_t>(level));
  const auto [primal, actual] = at::_unpack_dual(layer(dual), static_cast<int64_t>(level));
  torch::autograd::ForwardADLevel::release_idx(level);
  layer->to(at::kDouble);
  const auto wide = x.to(at::kDouble), step = 1e-6 * tangent.to(at::kDouble);
  EXPECT_TRUE(is_close(actual, (layer(wide + step) - layer(wide - step)) / 2e-6, 1e-6));
}

TEST(FeedForward, DropsInTrainingOnlyAndPrintsItself) {
  torch::manual_seed(moved(3));
  FeedForward layer(FeedForwardOptions(8).hidden_dim(16).dropout(0.5));
  const auto x = uniform({1, 4, 8}, at::kFloat);
  EXPECT_FALSE(layer(x).equal(layer(x)));
  layer->eval();
  EXPECT_TRUE(layer(x).equal(layer(x)));
  EXPECT_EQ(printed(*layer),
            "heed::FeedForward(emb_dim=8, hidden_dim=16, activation=gelu, dropout=0.5)");
  EXPECT_ERROR("FeedForward: x dim 2 (7) must equal emb_dim (8); x [1, 4, 7]",
               layer(at::ones({1, 4, 7})));
  EXPECT_ERROR("FeedForward: dropout (1) must be in [0, 1)",
               FeedForward(FeedForwardOptions(8).dropout(1.0)));
  EXPECT_ERROR("FeedForward: hidden_dim (0) must be at least 1",
               FeedForward(FeedForwardOptions(8).hidden_dim(0)));
}

/// Rows of any shape give the numbers and gradients of the same rows as [1, n, E].
TEST(FeedForward, TakesAnyRank) {
  torch::manual_seed(moved(4));
  for (const auto activation : {Activation::gelu, Activation::swiglu}) {
    FeedForward layer(FeedForwardOptions(8).activation(activation));
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             {8}, {5, 8}, {2, 3, 8}, {2, 3, 4, 8}, {2, 1, 3, 4, 8}, {0, 8}, {2, 0, 3, 8}}) {
      auto x = uniform(sizes, at::kFloat), rows = x.reshape({1, -1, 8}).clone();
      x.requires_grad_();
      rows.requires_grad_();
      const auto y = layer(x), expected = layer(rows);
      ASSERT_EQ(y.sizes(), x.sizes());
      if (x.numel() == 0) continue;
      EXPECT_TRUE(is_close(y.reshape({1, -1, 8}), expected, 1e-6));
      y.square().sum().backward();
      expected.square().sum().backward();
      EXPECT_TRUE(is_close(x.grad().reshape({1, -1, 8}), rows.grad(), 1e-6));
    }
    EXPECT_EQ(value_error([&] { layer(at::ones({})); }),
              "FeedForward: x rank (0) must be at least 1");
    EXPECT_EQ(value_error([&] {
                layer(at::ones({2, 3, 4, 7}));
              }),
              "FeedForward: x dim 3 (7) must equal emb_dim (8); x [2, 3, 4, 7]");
  }
}

class DoubledFeedForward : public FeedForwardImpl {
 public:
  using FeedForwardImpl::FeedForwardImpl;
  at::Tensor forward(const at::Tensor& x) override { return 2 * FeedForwardImpl::forward(x); }
};

class DoubledNorm : public NormImpl {
 public:
  using NormImpl::NormImpl;
  at::Tensor forward(const at::Tensor& x) override { return 2 * NormImpl::forward(x); }
};

class DoubledPositions : public PositionEmbeddingImpl {
 public:
  using PositionEmbeddingImpl::PositionEmbeddingImpl;
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& positions) override {
    return 2 * PositionEmbeddingImpl::forward(x, positions);
  }
};

/// Replaces a module's layer `name`, which `layer` holds, by a subclass with its parameters, and
/// checks that the module calls it, and that no clone passes for it.
template <typename Subclass, typename Module, typename Layer, typename Call>
void expect_called(Module& module, const std::string& name, Layer& layer, const Call& call) {
  const auto plain = call();
  const auto copy = std::make_shared<Subclass>(layer->options);
  {
    const at::NoGradGuard no_grad;
    const auto from = layer->parameters(), to = copy->parameters();
    for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  }
  auto mine = std::static_pointer_cast<typename Layer::ContainedType>(copy);
  layer = module->replace_module(name, mine);
  EXPECT_FALSE(call().equal(plain)) << name;
  EXPECT_NE(value_error([&] { module->clone(); }).find(": clone must not be called for a subclass"),
            std::string::npos);
}

/// As they are in other modules.
TEST(Layers, OfASubclassAreCalled) {
  torch::manual_seed(moved(5));
  Decoder model(DecoderOptions(/*vocab_size=*/11,
                               TransformerBlockOptions(GroupQueryAttentionOptions(8, 2, 2)), 1)
                    .positions(PositionEmbeddingOptions(8)));
  model->eval();
  const auto tokens = at::arange(4).unsqueeze(0);
  const auto call = [&] { return model->forward(tokens); };
  auto& block = *model->stack->blocks->ptr<TransformerBlockImpl>(0);
  auto* const first = &block;
  expect_called<DoubledFeedForward>(first, "feed_forward", block.feed_forward, call);
  expect_called<DoubledNorm>(first, "attention_norm", block.attention_norm, call);
  expect_called<DoubledPositions>(model, "position_embedding", model->position_embedding, call);
  EXPECT_EQ(value_error([&] { block.feed_forward->clone(); }),
            "FeedForward: clone must not be called for a subclass: the copy would be a plain "
            "FeedForward");
}

TEST(PositionEmbedding, SinusoidalIsItsDefinition) {
  PositionEmbedding positions(PositionEmbeddingOptions(6));
  EXPECT_TRUE(positions->parameters().empty());
  const auto at_positions = at::tensor({0, 1, 4097, 1000000}, at::kLong);
  const auto vectors = positions(at::zeros({2, 4, 6}), at_positions);
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t pair = 0; pair < 3; ++pair) {
      const double angle = at_positions[i].item<double>() / std::pow(10000.0, 2.0 * pair / 6.0);
      EXPECT_NEAR(vectors[1][i][2 * pair].item<double>(), std::sin(angle), 1e-7);
      EXPECT_NEAR(vectors[1][i][2 * pair + 1].item<double>(), std::cos(angle), 1e-7);
    }
  }
  const auto x = uniform({2, 3, 6}, at::kFloat);
  EXPECT_TRUE(is_close(positions(x), positions(x, at::arange(3)), 0.0));
}

TEST(PositionEmbedding, LearnedIsAVectorAPosition) {
  torch::manual_seed(moved(4));
  PositionEmbedding positions(
      PositionEmbeddingOptions(6).kind(PositionKind::learned).max_length(10));
  const auto x = uniform({2, 3, 6}, at::kFloat);
  EXPECT_TRUE(is_close(positions(x), x + positions->weight.narrow(0, 0, 3), 0.0));
  const auto each = at::tensor({7, 8, 9, 0, 1, 2}, at::kLong).view({2, 3});
  EXPECT_TRUE(is_close(positions(x, each)[0], x[0] + positions->weight.narrow(0, 7, 3), 0.0));
  positions(x).sum().backward();
  EXPECT_TRUE(is_close(positions->weight.grad().narrow(0, 0, 3), 2 * at::ones({3, 6}), 0.0));
}

TEST(PositionEmbedding, RefusesWhatDoesNotFit) {
  PositionEmbedding positions(
      PositionEmbeddingOptions(6).kind(PositionKind::learned).max_length(4));
  EXPECT_ERROR("PositionEmbedding: x dim 1 (5) must be at most max_length (4); x [1, 5, 6]",
               positions(at::ones({1, 5, 6})));
  EXPECT_ERROR("PositionEmbedding: positions (3 to 4) must be at least 0 and below max_length (4)",
               positions(at::ones({1, 2, 6}), at::tensor({3, 4}, at::kLong)));
  EXPECT_ERROR("PositionEmbedding: positions must be [2] or [1, 2]; positions [1]",
               positions(at::ones({1, 2, 6}), at::tensor({3}, at::kLong)));
  EXPECT_ERROR("PositionEmbedding: x must be [B, L, 6]; x [1, 2, 5]",
               positions(at::ones({1, 2, 5})));
  EXPECT_ERROR("PositionEmbedding: x dtype (BFloat16) must equal weight dtype (Float)",
               positions(at::ones({1, 2, 6}, at::kBFloat16)));
  const auto x = at::ones({1, 2, 6});
  EXPECT_TRUE(positions(x, at::tensor({1, 3}, at::kChar))
                  .equal(positions(x, at::tensor({1, 3}, at::kLong))));
  EXPECT_ERROR("PositionEmbedding: emb_dim (5) must be even for sinusoidal positions",
               PositionEmbedding(PositionEmbeddingOptions(5)));
  EXPECT_ERROR("PositionEmbedding: max_length must be given for learned positions",
               PositionEmbedding(PositionEmbeddingOptions(6).kind(PositionKind::learned)));
}

TEST(Layers, StandInASequential) {
  torch::nn::Sequential layers(PositionEmbedding(PositionEmbeddingOptions(8)), RMSNorm(8),
                               FeedForward(FeedForwardOptions(8)));
  EXPECT_EQ(layers->forward(at::ones({2, 3, 8})).sizes(), at::IntArrayRef({2, 3, 8}));
}

}  // namespace
}  // namespace heed::test
