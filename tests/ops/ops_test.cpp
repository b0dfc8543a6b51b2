// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/attend_paged.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

/// The operators as a C++ program meets them that links heed::ops and nothing else calls.

namespace heed::test::of_ops {
namespace {

using Stack = std::vector<c10::IValue>;

c10::OperatorHandle find_operator(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("heed::" + name).c_str(), "");
}

/// Adds the defaults of the arguments of `name` that are not on the stack.
void add_defaults(const std::string& name, Stack& stack) {
  const auto& arguments = find_operator(name).schema().arguments();
  for (auto i = stack.size(); i < arguments.size(); ++i) {
    stack.push_back(arguments[i].default_value().value_or(c10::IValue()));
  }
}

/// heed::`name` for the first of its arguments; the others have their defaults.
std::vector<at::Tensor> call(const std::string& name, Stack stack) {
  add_defaults(name, stack);
  find_operator(name).callBoxed(stack);
  std::vector<at::Tensor> results;
  results.reserve(stack.size());
  for (const auto& result : stack) results.push_back(result.toTensor());
  return results;
}

Inputs make_heads(at::Device device, at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(moved(1));
  const auto options = at::TensorOptions().device(device).dtype(dtype);
  const auto heads = [&](at::IntArrayRef sizes) {
    return at::randn(sizes).to(options).requires_grad_();
  };
  return {heads({2, 4, 5, 8}), heads({2, 2, 7, 8}), heads({2, 2, 7, 6})};
}

at::Tensor weights_like(const at::Tensor& tensor) {
  return at::linspace(-1, 1, tensor.numel(), tensor.options().requires_grad(false))
      .view(tensor.sizes());
}

/// The arguments of attend: causal, with dropout.
Stack attend_arguments(const Inputs& heads, double dropout = 0.0) {
  return {heads.query, heads.key, heads.value, {}, {}, true, {}, dropout};
}

/// Adds the arguments that follow those of attend in the operators of a traced call's two passes.
void add_pass(Stack& stack, const at::Tensor& seed = {}) {
  add_defaults("attend", stack);
  stack.push_back(seed.defined() ? c10::IValue(seed) : c10::IValue());
  stack.emplace_back(/*with_lse=*/false);
  c10::List<bool> wanted({true, true, true});
  wanted.resize(find_operator("attend_backward").schema().returns().size(), false);
  stack.emplace_back(wanted);
}

TEST(Operators, AreHeedsFunctions) {
  for (const auto device : devices()) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto heads = make_heads(device, dtype);
      const auto expected = attend(heads, AttendOptions().causal(true));
      const auto output = call("attend", attend_arguments(heads))[0];
      EXPECT_TRUE(output.equal(expected)) << device << dtype;
      const std::vector<at::Tensor> inputs = {heads.query, heads.key, heads.value};
      const auto of_output = weights_like(output);
      const auto found = torch::autograd::grad({output}, inputs, {of_output});
      const auto own = torch::autograd::grad({expected}, inputs, {of_output});
      EXPECT_TRUE(are_equal(found, own));
    }
  }
}

TEST(Operators, OfTracedPassesGiveTheSameGradients) {
  for (const auto device : devices()) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const auto heads = make_heads(device, dtype);
      auto arguments = attend_arguments(heads);
      const auto output = call("attend", arguments)[0];
      const auto of_output = weights_like(output);
      const auto expected =
          torch::autograd::grad({output}, {heads.query, heads.key, heads.value}, {of_output});
      const at::NoGradGuard no_grad;
      add_pass(arguments);
      const auto kept = call("_attend_forward", arguments);
      EXPECT_TRUE(is_close(kept[0], output, 16 * unit_roundoff(dtype)));
      Stack backward = {of_output, {}};
      backward.insert(backward.end(), kept.begin(), kept.end());
      backward.insert(backward.end(), arguments.begin(), arguments.end());
      auto found = call("attend_backward", backward);
      for (size_t i = 3; i < found.size(); ++i) EXPECT_FALSE(found[i].defined());
      found.resize(3);
      EXPECT_TRUE(are_close(found, expected, 64 * unit_roundoff(dtype))) << device << dtype;
    }
  }
}

TEST(Operators, OfTracedPassesDropTheSameWeights) {
  for (const auto device : devices()) {
    const at::NoGradGuard no_grad;
    const auto heads = make_heads(device);
    auto arguments = attend_arguments(heads, /*dropout=*/0.5);
    add_pass(arguments, at::full({1}, 7, at::kLong));
    const auto kept = call("_attend_forward", arguments);
    const auto of_output = weights_like(kept[0]);
    Stack backward = {of_output, {}};
    backward.insert(backward.end(), kept.begin(), kept.end());
    backward.insert(backward.end(), arguments.begin(), arguments.end());
    const auto of_value = call("attend_backward", backward)[2];
    // The output is linear in value.
    EXPECT_NEAR((of_value * heads.value).sum().item<double>(),
                (of_output * kept[0]).sum().item<double>(), 1e-4);
    EXPECT_FALSE(call("_attend_forward", attend_arguments(heads))[0].allclose(kept[0]));
  }
}

TEST(Operators, OfPackedSequencesAreHeedsFunction) {
  for (const auto device : devices()) {
    const auto heads = make_heads(device);
    const auto packed = [](const at::Tensor& tensor) {
      return tensor.detach()[0].transpose(0, 1).contiguous().requires_grad_();
    };
    const std::vector<at::Tensor> inputs = {packed(heads.query), packed(heads.key),
                                            packed(heads.value)};
    const auto query_offsets = at::tensor({0, 2, 5}, at::kLong);
    const auto key_offsets = at::tensor({0, 3, 7}, at::kLong);
    const auto output =
        call("attend_varlen", {inputs[0], inputs[1], inputs[2], query_offsets, key_offsets})[0];
    EXPECT_TRUE(
        output.equal(attend_varlen(inputs[0], inputs[1], inputs[2], query_offsets, key_offsets)));
    const auto of_output = weights_like(output);
    const auto expected = torch::autograd::grad({output}, inputs, {of_output});
    const at::NoGradGuard no_grad;
    auto found = call("attend_varlen_backward",
                      {of_output, inputs[0], inputs[1], inputs[2], query_offsets, key_offsets});
    found.resize(3);
    EXPECT_TRUE(are_close(found, expected, 64 * unit_roundoff(at::kFloat)));
  }
}

TEST(Operators, WithMoreResultsAreHeedsFunctions) {
  for (const auto device : devices()) {
    const auto heads = make_heads(device);
    const auto causal = AttendOptions().causal(true);
    const auto weighed = call("attend_with_weights", attend_arguments(heads));
    const auto [output, weights] = attend_with_weights(heads.query, heads.key, heads.value, causal);
    EXPECT_TRUE(are_equal(weighed, {output, weights}));
    const auto packed = [](const at::Tensor& tensor) {
      return tensor.detach()[0].transpose(0, 1).contiguous();
    };
    const auto query = packed(heads.query), key = packed(heads.key), value = packed(heads.value);
    const auto query_offsets = at::tensor({0, 2, 5}, at::kLong);
    const auto key_offsets = at::tensor({0, 3, 7}, at::kLong);
    const auto found =
        call("attend_varlen_with_lse", {query, key, value, query_offsets, key_offsets});
    const auto [own, lse] = attend_varlen_with_lse(query, key, value, query_offsets, key_offsets);
    EXPECT_TRUE(are_equal(found, {own, lse}));
  }
}

TEST(Operators, OfWeightsHaveTheGradientsOfTheTracedPass) {
  for (const auto device : devices()) {
    const auto heads = make_heads(device);
    const std::vector<at::Tensor> inputs = {heads.query, heads.key, heads.value};
    auto arguments = attend_arguments(heads);
    const auto results = call("attend_with_weights", arguments);
    const std::vector<at::Tensor> given = {weights_like(results[0]), weights_like(results[1])};
    const auto expected = torch::autograd::grad(results, inputs, given);
    const at::NoGradGuard no_grad;
    add_defaults("attend_with_weights", arguments);
    Stack backward = {given[0], given[1]};
    backward.insert(backward.end(), arguments.begin(), arguments.end());
    auto found = call("attend_with_weights_backward", backward);
    found.resize(3);
    EXPECT_TRUE(are_close(found, expected, 64 * unit_roundoff(at::kFloat)));
  }
}

TEST(Operators, OfPagesAreHeedsFunction) {
  for (const auto device : devices()) {
    const at::NoGradGuard no_grad;
    torch::manual_seed(moved(1));
    const auto options = at::TensorOptions().device(device);
    const auto query = at::randn({4, 4, 8}).to(options);
    const auto keys = at::randn({3, 2, 16, 8}).to(options);
    const auto values = at::randn({3, 2, 16, 6}).to(options);
    const auto table = at::tensor({2, 0, 1, 0}, at::kLong).view({2, 2});
    const auto offsets = at::tensor({0, 1, 4}, at::kLong);
    const auto lengths = at::tensor({20, 5}, at::kLong);
    const auto found =
        call("attend_paged", {query, keys, values, table, offsets, lengths, /*causal=*/true})[0];
    EXPECT_TRUE(found.equal(
        attend_paged(query, keys, values, table, offsets, lengths, AttendOptions().causal(true))));
  }
}

TEST(Operators, OfLayersRunOnEveryDevice) {
  for (const auto device : devices()) {
    const auto x = make_heads(device).query;
    const auto weight = at::linspace(0.5, 2, 8, x.options().requires_grad(false)).requires_grad_();
    const auto normal = call("rms_norm", {x, weight, 1e-5})[0];
    const auto expected = at::rms_norm(x, {8}, weight, 1e-5);
    EXPECT_TRUE(is_close(normal, expected, 16 * unit_roundoff(at::kFloat)));
    const auto of_output = weights_like(normal);
    const auto gradients = torch::autograd::grad({expected}, {x, weight}, {of_output});
    const auto found = call("rms_norm_backward", {of_output, x, weight, 1e-5});
    EXPECT_TRUE(is_close(found[0], gradients[0], 64 * unit_roundoff(at::kFloat)));
    EXPECT_TRUE(is_close(found[1], gradients[1], 64 * unit_roundoff(at::kFloat)));

    const auto angles = at::linspace(0, 6, 20, x.options().requires_grad(false)).view({5, 4});
    const auto turned = call("rotate", {x, angles.cos(), angles.sin()})[0];
    const auto back = call("rotate", {turned, angles.cos(), -angles.sin()})[0];
    EXPECT_TRUE(is_close(back, x, 16 * unit_roundoff(at::kFloat)));
    EXPECT_FALSE(turned.allclose(x));
  }
}

TEST(Operators, OfTheLossRunOnEveryDevice) {
  for (const auto device : devices()) {
    const auto options = at::device(device).dtype(at::kFloat);
    const auto x = at::linspace(-1, 1, 24, options).view({6, 4}).requires_grad_();
    const auto weight = at::linspace(2, -1, 36, options).view({9, 4}).requires_grad_();
    const auto targets = at::tensor({8, 0, -100, 3, 3, 1}, at::kLong).to(device);
    const auto loss =
        call("linear_cross_entropy",
             {x, weight, targets, {}, {}, /*ignore_index=*/-100, /*label_smoothing=*/0.1})[0];
    const auto expected =
        at::cross_entropy_loss(x.matmul(weight.t()), targets, {}, at::Reduction::Mean, -100, 0.1);
    EXPECT_TRUE(is_close(loss, expected, 1e-5));
    const auto gradients = torch::autograd::grad({expected}, {x, weight});
    const auto found = torch::autograd::grad({loss}, {x, weight});
    EXPECT_TRUE(is_close(found[0], gradients[0], 1e-5));
    EXPECT_TRUE(is_close(found[1], gradients[1], 1e-5));
  }
}

TEST(Operators, RefuseWithHeedsErrors) {
  const auto heads = make_heads(at::kCPU);
  EXPECT_ERROR("attend: key rank (3) must equal 4; key [2, 7, 8]",
               call("attend", {heads.query, heads.key[0], heads.value}));
}

}  // namespace
}  // namespace heed::test::of_ops
