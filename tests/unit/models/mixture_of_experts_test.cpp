// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/mixture_of_experts.h>
#include <heed/pack_weights.h>
#include <heed/weights.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/temporary_folder.h"

namespace heed::test::of_mixtures {
namespace {

constexpr int64_t E = 16, F = 24, N = 8, K = 2;

FeedForwardOptions gated_expert() {
  return FeedForwardOptions(E).hidden_dim(F).activation(Activation::swiglu).bias(false);
}

FeedForwardOptions limited_expert() {
  return gated_expert().bias(true).swiglu_beta(1.702).swiglu_limit(0.5).swiglu_offset(1.0);
}

MixtureOfExpertsOptions usual(int64_t top_k = K) { return {gated_expert(), N, top_k}; }

/// DeepSeek's: sigmoids, a bias of the choice, groups and a shared expert.
MixtureOfExpertsOptions in_groups() {
  return usual(3)
      .score(ExpertScore::sigmoid)
      .choice_bias(true)
      .scale(2.5)
      .group_num(4)
      .top_groups(2)
      .group_best(2)
      .shared(gated_expert().hidden_dim(40));
}

std::vector<std::pair<std::string, MixtureOfExpertsOptions>> cases() {
  const auto plain = FeedForwardOptions(E).hidden_dim(F);
  return {{"usual", usual()},
          {"one expert each", usual(1).normalize(false)},
          {"all experts", usual(N)},
          {"scores as they are", usual().normalize(false).scale(0.5)},
          {"biases", MixtureOfExpertsOptions(plain, 5, 2).router_bias(true)},
          {"limited", MixtureOfExpertsOptions(limited_expert(), 6, 3).router_bias(true)},
          {"shared with a gate", usual().shared(plain).shared_gate(true)},
          {"in groups", in_groups()},
          {"groups by their best", usual(2).group_num(2).group_best(1)}};
}

/// With weights of which no two experts have equal ones, a bias of the choice too.
MixtureOfExperts random_layer(const MixtureOfExpertsOptions& options) {
  const at::NoGradGuard no_grad;
  MixtureOfExperts layer(options);
  for (auto& parameter : layer->parameters()) parameter.uniform_(-0.6, 0.6);
  if (layer->choice_bias.defined()) layer->choice_bias.uniform_(-0.3, 0.3);
  return layer;
}

// The reference computes row after row in float64, by a sort of plain numbers.

at::Tensor of_layer(const torch::nn::Linear& layer, const at::Tensor& row) {
  const auto product = at::matmul(layer->weight.to(at::kDouble), row);
  return layer->bias.defined() ? product + layer->bias.to(at::kDouble) : product;
}

at::Tensor of_expert(const FeedForwardImpl& expert, const at::Tensor& row) {
  const auto up = of_layer(expert.fc_in, row);
  if (!expert.fc_gate) return of_layer(expert.fc_out, at::gelu(up));
  const auto limit = expert.options.swiglu_limit().value_or(1e9);
  const auto gate = of_layer(expert.fc_gate, row).clamp_max(limit);
  const auto silu = gate * at::sigmoid(expert.options.swiglu_beta() * gate);
  return of_layer(expert.fc_out, silu * (up.clamp(-limit, limit) + expert.options.swiglu_offset()));
}

std::vector<double> numbers_of(const at::Tensor& tensor) {
  const auto values = tensor.detach().to(at::kDouble).contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

/// The indices of the highest scores, the highest first.
std::vector<int64_t> best_of(const std::vector<double>& scores, int64_t count) {
  std::vector<int64_t> indices(scores.size());
  std::iota(indices.begin(), indices.end(), 0);
  std::stable_sort(indices.begin(), indices.end(),
                   [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  indices.resize(static_cast<size_t>(count));
  return indices;
}

/// The scores by which a row's experts are chosen: -infinity outside of its best groups.
std::vector<double> choice_of(const MixtureOfExpertsImpl& layer, const at::Tensor& scores) {
  const auto& options = layer.options;
  auto choice = numbers_of(scores);
  if (layer.choice_bias.defined()) {
    const auto bias = numbers_of(layer.choice_bias);
    for (size_t i = 0; i < choice.size(); ++i) choice[i] += bias[i];
  }
  const auto size = static_cast<int64_t>(choice.size()) / options.group_num();
  std::vector<double> groups;
  for (int64_t g = 0; g < options.group_num(); ++g) {
    std::vector<double> own(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(own.rbegin(), own.rend());
    groups.push_back(std::accumulate(own.begin(), own.begin() + options.group_best(), 0.0));
  }
  const auto best = best_of(groups, options.top_groups());
  for (size_t i = 0; i < choice.size(); ++i) {
    const auto group = static_cast<int64_t>(i) / size;
    if (std::count(best.begin(), best.end(), group) == 0) {
      choice[i] = -std::numeric_limits<double>::infinity();
    }
  }
  return choice;
}

at::Tensor reference_of_row(const MixtureOfExpertsImpl& layer, const at::Tensor& row) {
  const auto& options = layer.options;
  const auto logits = of_layer(layer.router, row);
  const auto scores =
      options.score() == ExpertScore::softmax ? logits.softmax(0) : at::sigmoid(logits);
  const auto chosen = best_of(choice_of(layer, scores), options.top_k());
  at::Tensor total = at::zeros({}, at::kDouble), output = at::zeros({E}, at::kDouble);
  for (const auto n : chosen) total = total + scores[n];
  for (const auto n : chosen) {
    const auto weight = options.normalize() ? scores[n] / total : scores[n];
    const auto& expert = *layer.experts.ptr()->ptr<FeedForwardImpl>(static_cast<size_t>(n));
    output = output + weight * options.scale() * of_expert(expert, row);
  }
  if (!layer.shared) return output;
  const auto shared = of_expert(*layer.shared, row);
  return output + (layer.fc_shared_gate ? shared * at::sigmoid(of_layer(layer.fc_shared_gate, row))
                                        : shared);
}

at::Tensor reference_mixture(const MixtureOfExperts& layer, const at::Tensor& x) {
  std::vector<at::Tensor> rows;
  const auto flat = x.to(at::kDouble).reshape({-1, E});
  for (int64_t t = 0; t < flat.size(0); ++t) rows.push_back(reference_of_row(*layer, flat[t]));
  return at::stack(rows).reshape(x.sizes());
}

/// The gradients of x and of all parameters, 0 where there is none.
std::vector<at::Tensor> gradients_of(const MixtureOfExperts& layer, const at::Tensor& x,
                                     const at::Tensor& output, const at::Tensor& gradient) {
  auto inputs = layer->parameters();
  inputs.push_back(x);
  auto gradients = torch::autograd::grad({output}, inputs, {gradient.to(output.scalar_type())},
                                         /*retain_graph=*/true, /*create_graph=*/false,
                                         /*allow_unused=*/true);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(inputs[i]);
  }
  return gradients;
}

TEST(MixtureOfExperts, EqualsAReferenceOfOneRowAfterAnother) {
  for (const auto& [name, options] : cases()) {
    for (const auto dtype : {at::kDouble, at::kFloat}) {
      SCOPED_TRACE(c10::str(name, " ", dtype));
      torch::manual_seed(moved(5));
      auto layer = random_layer(options);
      layer->to(dtype);
      const auto x = uniform({3, 7, E}, dtype).requires_grad_();
      const auto gradient = uniform({3, 7, E}, at::kDouble);
      const auto output = layer->forward(x), expected = reference_mixture(layer, x);
      EXPECT_EQ(output.scalar_type(), dtype);
      // Sums of some hundred products, each rounded once.
      const auto close = 100 * unit_roundoff(dtype);
      EXPECT_TRUE(are_alike({output}, {expected}, close));
      EXPECT_TRUE(are_alike(gradients_of(layer, x, output, gradient),
                            gradients_of(layer, x, expected, gradient), close));
    }
  }
}

TEST(MixtureOfExperts, TakesAllShapesAndLayouts) {
  torch::manual_seed(moved(6));
  auto layer = random_layer(usual());
  const at::NoGradGuard no_grad;
  const auto x = uniform({2, 5, E}, at::kFloat);
  const auto expected = layer->forward(x);
  EXPECT_TRUE(are_alike({layer->forward(x[1][3])}, {expected[1][3]}, 1e-6));  // other products
  EXPECT_TRUE(are_alike({layer->forward(x[0])}, {expected[0]}, 1e-6));
  EXPECT_TRUE(are_alike({layer->forward(x.narrow(1, 4, 1))}, {expected.narrow(1, 4, 1)}, 1e-6));
  EXPECT_TRUE(
      layer->forward(x.transpose(0, 1)).equal(layer->forward(x.transpose(0, 1).contiguous())));
  EXPECT_TRUE(layer->forward(x.mT().contiguous().mT()).equal(expected));
}

TEST(MixtureOfExperts, TakesNoRows) {
  for (const bool trains : {false, true}) {
    MixtureOfExperts layer(in_groups());
    const at::AutoGradMode mode(trains);
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{0, E}, {2, 0, E}}) {
      const auto x = at::zeros(sizes).requires_grad_(trains);
      const auto output = layer->forward(x);
      EXPECT_EQ(output.sizes(), x.sizes());
      if (!trains) continue;
      output.sum().backward();
      for (const auto& parameter : layer->parameters()) {
        EXPECT_TRUE(parameter.grad().defined() && parameter.grad().eq(0).all().item<bool>());
      }
    }
  }
}

/// Rounding of x and of weights is in the reference too, so that it chooses the same experts.
TEST(MixtureOfExperts, RoutesHalfTypesInFloat32) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::str(dtype));
    torch::manual_seed(moved(7));
    auto layer = random_layer(in_groups());
    layer->to(dtype);
    const at::NoGradGuard no_grad;
    const auto x = uniform({40, E}, dtype);
    const auto routing = layer->route(x);
    EXPECT_EQ(routing.logits.scalar_type(), at::kFloat);
    EXPECT_EQ(routing.weights.scalar_type(), at::kFloat);
    EXPECT_TRUE(are_alike({routing.logits}, {linear64(layer->router, x)}, 1e-6));
    const auto output = layer->forward(x);
    EXPECT_EQ(output.scalar_type(), dtype);
    // The hidden layer, the expert's output and the sum are rounded.
    EXPECT_TRUE(are_alike({output}, {reference_mixture(layer, x)}, 6 * unit_roundoff(dtype)));
  }
}

TEST(MixtureOfExperts, RoutesUnderAutocastAsWithout) {
  torch::manual_seed(moved(8));
  auto layer = random_layer(usual());
  const at::NoGradGuard no_grad;
  const auto x = uniform({9, E}, at::kFloat);
  const auto expected = layer->route(x);
  const auto output = layer->forward(x);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto routing = layer->route(x);
  const auto rounded = layer->forward(x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_TRUE(are_equal({routing.experts, routing.weights, routing.logits},
                        {expected.experts, expected.weights, expected.logits}));
  EXPECT_EQ(rounded.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(are_alike({rounded}, {output}, 3e-2));
}

TEST(MixtureOfExperts, GivesIdleExpertsGradientsOfZero) {
  torch::manual_seed(moved(9));
  auto layer = random_layer(usual(1));
  const auto x = uniform({1, E}, at::kFloat);
  layer->forward(x).sum().backward();
  const auto chosen = layer->route(x).experts.item<int64_t>();
  for (int64_t n = 0; n < N; ++n) {
    const auto& gradient =
        layer->experts.ptr()->ptr<FeedForwardImpl>(static_cast<size_t>(n))->fc_out->weight.grad();
    ASSERT_TRUE(gradient.defined());
    EXPECT_EQ(gradient.ne(0).any().item<bool>(), n == chosen);
  }
}

TEST(MixtureOfExperts, HasSecondDerivatives) {
  torch::manual_seed(moved(10));
  auto layer = random_layer(usual());
  layer->to(at::kDouble);
  const auto x = uniform({6, E}, at::kDouble).requires_grad_();
  const auto second = [&](const at::Tensor& output) {
    const auto first = torch::autograd::grad({output.square().sum()}, {x}, {}, {}, true)[0];
    return torch::autograd::grad({first.square().sum()}, {x, layer->router->weight});
  };
  EXPECT_TRUE(are_alike(second(layer->forward(x)), second(reference_mixture(layer, x)), 1e-12));
}

TEST(MixtureOfExperts, CopiesItsRoutingAndWeights) {
  torch::manual_seed(moved(11));
  auto layer = random_layer(in_groups());
  const auto x = uniform({4, E}, at::kFloat);
  const auto expected = layer->forward(x);
  MixtureOfExperts copy(std::dynamic_pointer_cast<MixtureOfExpertsImpl>(layer->clone()));
  EXPECT_TRUE(copy->forward(x).equal(expected));
  const TemporaryFolder folder("mixture");
  const auto path = (folder.path() / "mixture.safetensors").string();
  save_weights(*layer, path);
  MixtureOfExperts loaded(in_groups());
  load_weights(*loaded, path);
  EXPECT_TRUE(loaded->forward(x).equal(expected));
  EXPECT_EQ(printed(layer),
            "heed::MixtureOfExperts(expert_num=8, top_k=3, score=sigmoid, scale=2.5, "
            "choice_bias=true, group_num=4, top_groups=2, group_best=2)");
  layer->reset_parameters();
  EXPECT_TRUE(layer->choice_bias.eq(0).all().item<bool>());
  EXPECT_FALSE(layer->forward(x).equal(expected));
}

TEST(MixtureOfExperts, PacksExpertsButNotTheRouter) {
  torch::manual_seed(moved(12));
  const auto options =
      MixtureOfExpertsOptions(gated_expert().emb_dim(64).hidden_dim(32), N, K).shared_gate(false);
  for (const auto format : {PackFormat::float32, PackFormat::int8, PackFormat::int4}) {
    auto layer = random_layer(options);
    layer->eval();
    const at::NoGradGuard no_grad;
    for (const int64_t rows : {1, 3, 40}) {
      const auto x = uniform({rows, 64}, at::kFloat);
      auto copy = MixtureOfExperts(std::dynamic_pointer_cast<MixtureOfExpertsImpl>(layer->clone()));
      const auto expected = copy->forward(x);
      const auto routing = copy->route(x);
      pack_weights(*copy, format);
      EXPECT_TRUE(copy->route(x).logits.equal(routing.logits));
      const double close =
          format == PackFormat::float32 ? 1e-5 : (format == PackFormat::int8 ? 2e-2 : 0.3);
      EXPECT_TRUE(are_alike({copy->forward(x)}, {expected}, close));
    }
  }
}

TEST(MixtureOfExperts, RefusesOptions) {
  const auto make = [](const MixtureOfExpertsOptions& options) { MixtureOfExperts layer(options); };
  const auto expert = gated_expert();
  EXPECT_ERROR("MixtureOfExperts: emb_dim (0) must be at least 1",
               make({FeedForwardOptions(0), N, K}));
  EXPECT_ERROR("MixtureOfExperts: expert_num (0) must be at least 1", make({expert, 0, K}));
  EXPECT_ERROR("MixtureOfExperts: expert_num (65537) must be at most 65536",
               make({expert, 65537, K}));
  EXPECT_ERROR("MixtureOfExperts: top_k (0) must be at least 1 and at most expert_num (8)",
               make(usual(0)));
  EXPECT_ERROR("MixtureOfExperts: top_k (9) must be at least 1 and at most expert_num (8)",
               make(usual(9)));
  EXPECT_ERROR("MixtureOfExperts: scale (0) must be finite and not 0", make(usual().scale(0)));
  EXPECT_ERROR("MixtureOfExperts: scale (nan) must be finite and not 0",
               make(usual().scale(std::nan(""))));
  EXPECT_ERROR("MixtureOfExperts: group_num (0) must be at least 1", make(usual().group_num(0)));
  EXPECT_ERROR("MixtureOfExperts: expert_num (8) must be a multiple of group_num (3)",
               make(usual().group_num(3)));
  EXPECT_ERROR("MixtureOfExperts: top_groups (3) must be at least 1 and at most group_num (2)",
               make(usual().group_num(2).top_groups(3)));
  EXPECT_ERROR(
      "MixtureOfExperts: group_best (5) must be at least 1 and at most expert_num / group_num (4)",
      make(usual().group_num(2).group_best(5)));
  EXPECT_ERROR(
      "MixtureOfExperts: top_k (3) must be at most the experts of top_groups (1) groups (2)",
      make(usual(3).group_num(4)));
  EXPECT_ERROR("MixtureOfExperts: shared emb_dim (8) must equal expert emb_dim (16)",
               make(usual().shared(FeedForwardOptions(8))));
  EXPECT_ERROR("MixtureOfExperts: shared_gate must be false without shared",
               make(usual().shared_gate(true)));
  EXPECT_ERROR("FeedForward: hidden_dim (0) must be at least 1",
               make({gated_expert().hidden_dim(0), N, K}));
  EXPECT_ERROR("FeedForward: hidden_dim (-1) must be at least 1",
               make(usual().shared(gated_expert().hidden_dim(-1))));
}

TEST(MixtureOfExperts, RefusesInputs) {
  MixtureOfExperts layer(usual());
  EXPECT_ERROR("MixtureOfExperts: x dim 1 (15) must equal emb_dim (16); x [2, 15]",
               layer->forward(at::zeros({2, 15})));
  EXPECT_ERROR("MixtureOfExperts: x dtype (Double) must equal weight dtype (Float)",
               layer->forward(at::zeros({2, E}, at::kDouble)));
  EXPECT_ERROR("MixtureOfExperts: x must be defined", layer->route({}));
}

std::vector<ExpertRouting> random_routings() {
  auto first = random_layer(usual()), second = random_layer(usual());
  return {first->route(uniform({30, E}, at::kFloat)), second->route(uniform({30, E}, at::kFloat))};
}

/// transformers' formula for the rows of all layers together: N times the sum of the shares of rows
/// that chose an expert as their k-th, times the mean of the softmax.
TEST(RouterLosses, EqualTheirFormulas) {
  torch::manual_seed(moved(13));
  const auto routings = random_routings();
  for (const bool masked : {false, true}) {
    const auto mask = masked ? at::rand({30}).gt(0.4) : at::ones({30}, at::kBool);
    double balance = 0, z = 0, count = 0;
    std::vector<double> chosen(N), probabilities(N);
    for (const auto& routing : routings) {
      const auto logits = routing.logits.to(at::kDouble);
      for (int64_t t = 0; t < 30; ++t) {
        if (!mask[t].item<bool>()) continue;
        const auto row = numbers_of(logits[t]);
        double sum = 0;
        for (const auto logit : row) sum += std::exp(logit);
        for (int64_t n = 0; n < N; ++n) probabilities[n] += std::exp(row[n]) / sum;
        for (int64_t k = 0; k < K; ++k) chosen[routing.experts[t][k].item<int64_t>()] += 1;
        z += std::log(sum) * std::log(sum);
        count += 1;
      }
    }
    for (int64_t n = 0; n < N; ++n) balance += N * chosen[n] / count * probabilities[n] / count;
    const auto given = masked ? std::optional<at::Tensor>(mask) : std::nullopt;
    EXPECT_NEAR(load_balancing_loss(routings, given).item<double>(), balance, 1e-5);
    EXPECT_NEAR(router_z_loss(routings, given).item<double>(), z / count, 1e-5);
  }
}

TEST(RouterLosses, TrainTheRouter) {
  torch::manual_seed(moved(14));
  auto layer = random_layer(usual());
  const auto x = uniform({200, E}, at::kFloat);
  const auto loss = [&] { return load_balancing_loss({layer->route(x)}); };
  const auto before = loss().item<double>();
  for (int step = 0; step < 30; ++step) {
    layer->zero_grad();
    loss().backward();
    const at::NoGradGuard no_grad;
    layer->router->weight.sub_(layer->router->weight.grad(), 0.5);
  }
  const auto after = loss().item<double>();
  EXPECT_GE(before, after);
  EXPECT_NEAR(after, K, 0.05);  // all experts have as many rows
  const auto hidden = at::zeros({200}, at::kBool);
  EXPECT_EQ(load_balancing_loss({layer->route(x)}, hidden).item<double>(), 0);
  EXPECT_EQ(router_z_loss({layer->route(x)}, hidden).item<double>(), 0);
}

/// Rounded to bfloat16, biases that differ by less than a hundredth would be equal.
TEST(MixtureOfExperts, KeepsTheBiasOfTheChoiceInFloat32) {
  torch::manual_seed(moved(17));
  const at::NoGradGuard no_grad;
  auto layer = random_layer(usual().choice_bias(true));
  const auto bias = layer->choice_bias.clone();
  const TemporaryFolder folder("choice_bias");
  const auto path = (folder.path() / "model.safetensors").string();
  save_weights(*layer, path);
  layer->to(at::kBFloat16);
  EXPECT_EQ(layer->router->weight.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(layer->choice_bias.equal(bias));
  EXPECT_EQ(layer->route(uniform({3, E}, at::kBFloat16)).experts.size(0), 3);
  const auto copy = std::dynamic_pointer_cast<MixtureOfExpertsImpl>(layer->clone());
  EXPECT_TRUE(copy->choice_bias.equal(bias));
  layer->to(at::kCPU, at::kDouble);
  EXPECT_TRUE(layer->choice_bias.equal(bias));
  auto rounded = random_layer(usual().choice_bias(true));
  rounded->to(at::kBFloat16);
  const auto report = load_weights(*rounded, path, LoadOptions().dtype(at::kBFloat16));
  EXPECT_TRUE(report.misshapen.empty());
  EXPECT_TRUE(rounded->choice_bias.equal(bias));
  save_weights(*rounded, path);
  rounded->choice_bias.zero_();
  load_weights(*rounded, path);
  EXPECT_TRUE(rounded->choice_bias.equal(bias));
}

TEST(RouterLosses, RefuseWhatDoesNotFit) {
  torch::manual_seed(moved(15));
  auto routings = random_routings();
  EXPECT_ERROR("load_balancing_loss: routings must not be empty", load_balancing_loss({}));
  EXPECT_ERROR("router_z_loss: mask must be bool [T]; logits of routings[0] [30, 8]",
               router_z_loss(routings, at::ones({29}, at::kBool)));
  EXPECT_ERROR("load_balancing_loss: mask must be bool [T]; logits of routings[0] [30, 8]",
               load_balancing_loss(routings, at::ones({30})));
  routings[1].logits = at::zeros({30, 7});
  EXPECT_ERROR(
      "load_balancing_loss: routings[1] must have 8 experts, as routings[0] has; logits [30, 7]",
      load_balancing_loss(routings));
  routings[0].experts = at::zeros({29, 2}, at::kLong);
  EXPECT_ERROR(
      "load_balancing_loss: routings[0] experts must be int64 [T, K] with the T of the logits "
      "[30, 8]",
      load_balancing_loss(routings));
  routings[0].logits = at::Tensor();
  EXPECT_ERROR("router_z_loss: routings[0] logits must be defined", router_z_loss(routings));
}

TEST(RoutingRecord, CollectsTheRoutingsOfItsThread) {
  torch::manual_seed(moved(16));
  auto layer = random_layer(usual());
  const auto x = uniform({3, E}, at::kFloat);
  EXPECT_FALSE(RoutingRecord::is_active());
  layer->forward(x);
  const RoutingRecord outer;
  EXPECT_TRUE(RoutingRecord::is_active());
  layer->forward(x);
  {
    const RoutingRecord inner;
    layer->forward(x);
    layer->forward(x.narrow(0, 0, 1));
    ASSERT_EQ(inner.routings().size(), 2);
    EXPECT_EQ(inner.routings()[1].logits.size(0), 1);
  }
  std::thread([&] {
    EXPECT_FALSE(RoutingRecord::is_active());
    layer->forward(x);
  }).join();
  layer->route(x);  // is no part of the model's forward pass
  ASSERT_EQ(outer.routings().size(), 1);
  EXPECT_TRUE(outer.routings()[0].experts.equal(layer->route(x).experts));
  EXPECT_TRUE(outer.routings()[0].logits.requires_grad());
}

}  // namespace
}  // namespace heed::test::of_mixtures
