// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/attention.h>
#include <heed/group_query_attention.h>
#include <heed/masks.h>
#include <heed/module.h>
#include <heed/multi_head_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/reference.h"
#include "support/seeds.h"

namespace heed::test {
namespace {

constexpr int64_t kEmbDim = 12;

struct Expected {
  at::Tensor output;   // [B, L, E]
  at::Tensor weights;  // [B, H, L, S], or [B, L, S] for one head
};

Expected single_head(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask) {
  const auto result = reference({split_heads(query, 1), split_heads(key, 1), split_heads(value, 1)},
                                AttendOptions().mask(mask));
  return {result.output.squeeze(1), result.weights.squeeze(1)};
}

template <typename Module>
Expected multi_head(Module& module, const torch::nn::Linear& last, const Inputs& sources,
                    int64_t groups, const AttendOptions& options) {
  const auto result = reference({split_heads(linear64(module->fc_q, sources.query), 4),
                                 split_heads(linear64(module->fc_k, sources.key), groups),
                                 split_heads(linear64(module->fc_v, sources.value), groups)},
                                options);
  const auto merged = merge_heads(result.output).to(last->weight.device());
  return {linear64(last, merged).detach(), result.weights};
}

/// The result that a module's document promises, in float64.
Expected expected(Attention& module, const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  return single_head(linear64(module->fc_q, x), linear64(module->fc_k, x),
                     linear64(module->fc_v, x), mask);
}

Expected expected(AttentionV1& module, const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  const auto packed = linear64(module->qkv, x);
  return single_head(packed.narrow(2, 0, kEmbDim), packed.narrow(2, kEmbDim, kEmbDim),
                     packed.narrow(2, 2 * kEmbDim, kEmbDim), mask);
}

Expected expected(MultiHeadAttention& module, const Inputs& sources, const AttendOptions& options) {
  return multi_head(module, module->fc_out, sources, 4, options);
}

Expected expected(GroupQueryAttention& module, const Inputs& sources,
                  const AttendOptions& options) {
  return multi_head(module, module->fc_o, sources, 2, options);
}

template <typename Module>
Expected expected(Module& module, const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  return expected(module, {x, x, x}, AttendOptions().mask(mask));
}

void make(Attention& module) { module = Attention(kEmbDim); }
void make(AttentionV1& module) { module = AttentionV1(kEmbDim); }
void make(MultiHeadAttention& module) { module = MultiHeadAttention(kEmbDim, 4); }
void make(GroupQueryAttention& module) {
  module = GroupQueryAttention(GroupQueryAttentionOptions(kEmbDim, 4, 2).dropout(0.1));
}

template <typename Module>
Module made() {
  Module module{nullptr};
  make(module);
  return module;
}

std::vector<std::string> parameter_names(const torch::nn::Module& module) {
  return module.named_parameters().keys();
}

/// Outputs stay below 2 in size; four products, of up to E = 12 terms, round in each of them.
double tolerance(at::ScalarType dtype) {
  return (dtype == at::kBFloat16 ? 8 : 64) * unit_roundoff(dtype);
}

/// forward and forward_with_weights of the arguments give what is wanted.
template <typename Module, typename... Arguments>
void expect_results(Module& module, const Expected& wanted, double tolerance,
                    const Arguments&... arguments) {
  const auto [output, weights] = module->forward_with_weights(arguments...);
  EXPECT_TRUE(is_close(module(arguments...), wanted.output, tolerance));
  EXPECT_TRUE(is_close(output, wanted.output, tolerance));
  EXPECT_TRUE(is_close(weights, wanted.weights, tolerance));
}

template <typename Module>
class EveryModule : public ::testing::Test {
 protected:
  EveryModule() { torch::manual_seed(moved(5)); }
};

using Modules = ::testing::Types<Attention, AttentionV1, MultiHeadAttention, GroupQueryAttention>;
TYPED_TEST_SUITE(EveryModule, Modules);

TYPED_TEST(EveryModule, EqualsTheReferenceInEvalMode) {
  const at::NoGradGuard no_grad;
  for (const auto device : devices()) {
    const std::vector<std::optional<at::Tensor>> masks = {
        {},
        causal_mask(5, 5, device),
        at::rand({2, 5, 5}).gt(0.4).to(device, at::kLong),
        at::rand({2, 1, 5, 5}).gt(0.4).to(device),
        padding_mask(at::tensor({int64_t{5}, int64_t{2}}), 5).to(device),
        at::zeros({5, 5}, at::kBool).to(device),
    };
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      auto module = made<TypeParam>();
      module->to(device, dtype);
      module->eval();
      const auto x = uniform({2, 5, kEmbDim}, at::device(device).dtype(dtype));
      for (const auto& mask : masks) {
        EXPECT_EQ(module(x, mask).scalar_type(), dtype);
        expect_results(module, expected(module, x, mask), tolerance(dtype), x, mask);
      }
    }
  }
}

TYPED_TEST(EveryModule, TakesInputsOfAnyStrideAndSize) {
  const at::NoGradGuard no_grad;
  auto module = made<TypeParam>();
  module->eval();
  const auto x = uniform({5, 2, kEmbDim}, at::kFloat).transpose(0, 1);
  EXPECT_TRUE(is_close(module(x), expected(module, x, {}).output, tolerance(at::kFloat)));
  EXPECT_EQ(module(at::zeros({0, 5, kEmbDim})).sizes(), at::IntArrayRef({0, 5, kEmbDim}));
  EXPECT_EQ(module(at::zeros({2, 0, kEmbDim})).sizes(), at::IntArrayRef({2, 0, kEmbDim}));
  const auto single = uniform({1, 1, kEmbDim}, at::kFloat);
  EXPECT_TRUE(is_close(module(single), expected(module, single, {}).output, tolerance(at::kFloat)));
}

TYPED_TEST(EveryModule, DropsWeightsInTrainingModeOnly) {
  const at::NoGradGuard no_grad;
  auto module = made<TypeParam>();
  module->options.dropout(0.5);
  const auto x = uniform({2, 16, kEmbDim}, at::kFloat);
  module->eval();
  EXPECT_TRUE(module(x).equal(module(x)));
  module->train();
  EXPECT_FALSE(module(x).equal(module(x)));
  torch::manual_seed(moved(9));
  const auto [first, weights] = module->forward_with_weights(x);
  torch::manual_seed(moved(9));
  EXPECT_TRUE(std::get<0>(module->forward_with_weights(x)).equal(first));
  const auto dropped = weights.eq(0).to(at::kDouble).mean().template item<double>();
  // At least 512 weights, each dropped with probability 0.5: 5 sigma is 0.11.
  EXPECT_NEAR(dropped, 0.5, 0.11);
}

TYPED_TEST(EveryModule, GivesEveryParameterTheGradientOfTheReference) {
  auto module = made<TypeParam>();
  module->to(at::kDouble);
  module->eval();
  const auto x = uniform({2, 3, kEmbDim}, at::kDouble).requires_grad_();
  const auto weight = uniform({2, 3, kEmbDim}, at::kDouble);
  const auto loss = [&] { return (module(x) * weight).sum(); };
  auto leaves = module->parameters();
  leaves.push_back(x);
  const auto gradients = torch::autograd::grad({loss()}, leaves);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < leaves.size(); ++i) {
    // A central difference along a random direction errs by step^2 times a third derivative of
    // order 1, and by roundoff over step.
    const double step = 1e-5;
    const auto direction = uniform(leaves[i].sizes(), at::kDouble);
    leaves[i].add_(direction, step);
    const double above = loss().template item<double>();
    leaves[i].sub_(direction, 2 * step);
    const double below = loss().template item<double>();
    leaves[i].add_(direction, step);
    const double actual = (gradients[i] * direction).sum().template item<double>();
    EXPECT_NEAR(actual, (above - below) / (2 * step), 1e-7) << "leaf " << i;
  }
}

TYPED_TEST(EveryModule, SitsInSequential) {
  auto module = made<TypeParam>();
  torch::nn::Sequential sequential(torch::nn::Linear(kEmbDim, kEmbDim), module,
                                   torch::nn::Linear(kEmbDim, 3));
  sequential->eval();
  const auto x = uniform({2, 3, kEmbDim}, at::kFloat);
  const auto first = sequential->template ptr<torch::nn::LinearImpl>(0);
  const auto last = sequential->template ptr<torch::nn::LinearImpl>(2);
  EXPECT_TRUE(sequential->forward(x).equal(last->forward(module(first->forward(x)))));
}

/// As a direct call takes it.
TYPED_TEST(EveryModule, TakesAMaskInSequential) {
  auto module = made<TypeParam>();
  torch::nn::Sequential sequential(module, torch::nn::Linear(kEmbDim, 3));
  sequential->eval();
  const auto x = uniform({2, 3, kEmbDim}, at::kFloat);
  const auto mask = causal_mask(3, 3);
  const auto last = sequential->template ptr<torch::nn::LinearImpl>(1);
  const auto masked = last->forward(module(x, mask)), plain = last->forward(module(x));
  EXPECT_FALSE(masked.equal(plain));
  EXPECT_TRUE(sequential->forward(x, mask).equal(masked));
  EXPECT_TRUE(sequential->forward(x, at::Tensor(mask)).equal(masked));
  EXPECT_TRUE(sequential->forward(x, std::optional<at::Tensor>(mask)).equal(masked));
  EXPECT_TRUE(sequential->forward(x, std::nullopt).equal(plain));
  EXPECT_TRUE(sequential->forward(x).equal(plain));
  torch::nn::AnyModule any(module);
  EXPECT_TRUE(any.forward(x, mask).equal(module(x, mask)));
}

/// Modules of a user's own, with arguments that no optional tensor becomes.
struct Scaling : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& factor = {},
                     bool doubled = false) {
    return x * factor.value_or(at::ones({1})) * (doubled ? 2 : 1);
  }
  HEED_DEFAULT_ARGS(1, std::optional<at::Tensor>, bool);
};
struct Adding : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& other = {}) {
    return other.defined() ? x + other : x;
  }
  HEED_DEFAULT_ARGS(1, at::Tensor);
};

TEST(Modules, MayHaveDefaultArgumentsOfAnyType) {
  const auto x = at::ones({3}), three = at::full({3}, 3.0);
  torch::nn::AnyModule scaling(std::make_shared<Scaling>()), adding(std::make_shared<Adding>());
  EXPECT_TRUE(scaling.forward(x).equal(x));
  EXPECT_TRUE(scaling.forward(x, three).equal(three));
  EXPECT_TRUE(scaling.forward(x, std::nullopt, true).equal(2 * x));
  EXPECT_TRUE(scaling.forward(x, three, true).equal(2 * three));
  EXPECT_TRUE(adding.forward(x).equal(x));
  EXPECT_TRUE(adding.forward(x, three).equal(x + three));
}

TYPED_TEST(EveryModule, ResetsParametersAsAtConstruction) {
  auto module = made<TypeParam>();
  torch::manual_seed(moved(11));
  const auto fresh = made<TypeParam>();
  torch::manual_seed(moved(11));
  module->reset_parameters();
  EXPECT_TRUE(are_equal(module->parameters(), fresh->parameters()));
}

TEST(Modules, RegisterTheDocumentsNames) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(parameter_names(*Attention(8)), Names({"fc_q.weight", "fc_q.bias", "fc_k.weight",
                                                   "fc_k.bias", "fc_v.weight", "fc_v.bias"}));
  EXPECT_EQ(parameter_names(*AttentionV1(8)), Names({"qkv.weight", "qkv.bias"}));
  EXPECT_EQ(parameter_names(*MultiHeadAttention(8, 2)),
            Names({"fc_q.weight", "fc_q.bias", "fc_k.weight", "fc_k.bias", "fc_v.weight",
                   "fc_v.bias", "fc_out.weight", "fc_out.bias"}));
  GroupQueryAttention grouped(8, 4, 2);
  EXPECT_EQ(parameter_names(*grouped),
            Names({"fc_q.weight", "fc_q.bias", "fc_k.weight", "fc_k.bias", "fc_v.weight",
                   "fc_v.bias", "fc_o.weight", "fc_o.bias"}));
  EXPECT_EQ(grouped->fc_k->weight.sizes(), at::IntArrayRef({4, 8}));
}

TEST(Modules, AreFoundInSequentialByTheirClass) {
  torch::nn::Sequential sequential(MultiHeadAttention(8, 2), GroupQueryAttention(8, 4, 2),
                                   Attention(8), AttentionV1(8));
  sequential->eval();
  const auto x = uniform({2, 3, 8}, at::kFloat);
  auto y = sequential->at<MultiHeadAttentionImpl>(0).forward(x, x, x);
  y = sequential->at<GroupQueryAttentionImpl>(1).forward(y);
  y = sequential->at<AttentionImpl>(2).forward(y);
  y = sequential->at<AttentionV1Impl>(3).forward(y);
  EXPECT_TRUE(sequential->forward(x).equal(y));
  EXPECT_TRUE(sequential->forward(x, std::optional<at::Tensor>()).equal(y));
}

template <typename Module>
void expect_cross_attention(Module module) {
  const at::NoGradGuard no_grad;
  module->eval();
  const auto query = uniform({2, 3, kEmbDim}, at::kFloat);
  const auto key = uniform({2, 7, kEmbDim}, at::kFloat);
  const auto value = uniform({2, 7, kEmbDim}, at::kFloat);
  const auto mask = at::rand({2, 3, 7}).gt(0.3);
  const auto wanted = expected(module, {query, key, value}, AttendOptions().mask(mask));
  expect_results(module, wanted, tolerance(at::kFloat), query, key, value, mask);
}

TEST(Modules, AttendBetweenSources) {
  torch::manual_seed(moved(6));
  expect_cross_attention(made<MultiHeadAttention>());
  expect_cross_attention(made<GroupQueryAttention>());
}

TEST(Modules, TakeSizesBiasesAndScoreOptions) {
  torch::manual_seed(moved(8));
  const at::NoGradGuard no_grad;
  MultiHeadAttention module(MultiHeadAttentionOptions(10, 4)
                                .key_emb_dim(6)
                                .value_emb_dim(7)
                                .head_dim(5)
                                .value_head_dim(3)
                                .input_bias(false)
                                .scale(0.3)
                                .causal(true)
                                .window(2));
  EXPECT_EQ(parameter_names(*module),
            std::vector<std::string>(
                {"fc_q.weight", "fc_k.weight", "fc_v.weight", "fc_out.weight", "fc_out.bias"}));
  module->eval();
  const auto query = uniform({2, 3, 10}, at::kFloat);
  const auto key = uniform({2, 5, 6}, at::kFloat);
  const auto value = uniform({2, 5, 7}, at::kFloat);
  const auto wanted =
      expected(module, {query, key, value}, AttendOptions().scale(0.3).causal(true).window(2));
  expect_results(module, wanted, tolerance(at::kFloat), query, key, value);
  EXPECT_EQ(printed(module),
            "heed::MultiHeadAttention(emb_dim=10, head_nums=4, dropout=0.1, key_emb_dim=6, "
            "value_emb_dim=7, head_dim=5, value_head_dim=3, input_bias=false, scale=0.3, "
            "causal=true, window=2)");
}

template <typename Module>
void expect_nested(Module module, at::Device device) {
  module->to(device);
  module->eval();
  const auto rows = [&](std::initializer_list<int64_t> lengths) {
    std::vector<at::Tensor> sequences;
    for (const auto length : lengths) sequences.push_back(uniform({length, kEmbDim}, device));
    return sequences;
  };
  const auto queries = rows({3, 1, 5}), keys = rows({4, 2, 5});
  const auto x = at::_nested_tensor_from_tensor_list(queries).requires_grad_();
  const auto memory = at::_nested_tensor_from_tensor_list(keys);
  const auto self = module(x).unbind();
  const auto cross = module(x, memory, memory).unbind();
  ASSERT_EQ(self.size(), queries.size());
  for (size_t n = 0; n < queries.size(); ++n) {
    const auto query = queries[n].unsqueeze(0);
    const auto key = keys[n].unsqueeze(0);
    EXPECT_TRUE(is_close(self[n].unsqueeze(0), module(query), tolerance(at::kFloat)));
    EXPECT_TRUE(is_close(cross[n].unsqueeze(0), module(query, key, key), tolerance(at::kFloat)));
  }
  auto loss = self[0].sum();
  for (size_t n = 1; n < self.size(); ++n) loss = loss + self[n].sum();
  const auto gradient = torch::autograd::grad({loss}, {x})[0].unbind();
  for (size_t n = 0; n < queries.size(); ++n) {
    const auto alone = queries[n].unsqueeze(0).requires_grad_();
    const auto wanted = torch::autograd::grad({module(alone).sum()}, {alone})[0];
    EXPECT_TRUE(is_close(gradient[n].unsqueeze(0), wanted, 8 * tolerance(at::kFloat)));
  }
}

TEST(Modules, TakeNestedTensors) {
  torch::manual_seed(moved(9));
  for (const auto device : devices()) {
    expect_nested(made<MultiHeadAttention>(), device);
    expect_nested(made<GroupQueryAttention>(), device);
  }
}

TEST(Modules, AddABias) {
  torch::manual_seed(moved(10));
  GroupQueryAttention module(kEmbDim, 4, 2);
  const auto query = uniform({2, 3, kEmbDim}, at::kFloat),
             key = uniform({2, 7, kEmbDim}, at::kFloat);
  const auto mask = at::ones({3, 7}, at::kBool).tril(4);
  const auto bias = uniform({1, 4, 3, 7}, at::kFloat).requires_grad_();
  const auto wanted =
      expected(module, {query, key, key}, AttendOptions().mask(mask).bias(bias.detach()));
  expect_results(module, wanted, tolerance(at::kFloat), query, key, key, mask, bias);
  const auto output = module(query, key, key, mask, bias);
  const auto gradient = torch::autograd::grad({output.square().sum()}, {bias})[0];
  EXPECT_GT(gradient.abs().max().item<double>(), 1e-3);
}

TEST(Modules, FunctionalFormSplitsAndMergesHeads) {
  torch::manual_seed(moved(7));
  const auto query = uniform({2, 3, 4 * 5}, at::kFloat);
  const auto key = uniform({2, 7, 2 * 5}, at::kFloat);
  const auto value = uniform({2, 7, 2 * 6}, at::kFloat);
  const auto wanted =
      reference({split_heads(query, 4), split_heads(key, 2), split_heads(value, 2)}, {});
  const auto merged = merge_heads(wanted.output);
  EXPECT_TRUE(is_close(multi_head_attention(query, key, value, 4), merged, tolerance(at::kFloat)));
  const auto [output, weights] = multi_head_attention_with_weights(query, key, value, 4);
  EXPECT_TRUE(is_close(output, merged, tolerance(at::kFloat)));
  EXPECT_TRUE(is_close(weights, wanted.weights, tolerance(at::kFloat)));
}

}  // namespace
}  // namespace heed::test
