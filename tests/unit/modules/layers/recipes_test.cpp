// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/recipes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <functional>
#include <string>
#include <vector>

#include "cpu/capability.h"
#include "modules/layers/linear.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/memory.h"
#include "support/seeds.h"

namespace heed::test::of_recipes {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kBatch = 2, kLength = 19, kWidth = 48, kOutputs = 40;

/// A layer of x and gate [B, L, E], weight and bias [E], and what its node keeps beside these.
struct Layer {
  std::string name;
  std::function<at::Tensor(const Tensors&)> run;
  int64_t numbers_of_row = 0;  // in float32
};

std::vector<Layer> layers() {
  const auto normalize = [](const Tensors& in) { return detail::rms_norm(in[0], in[2], 1e-5, 1); };
  const auto gate = [](const Tensors& in) { return detail::swiglu(in[0], in[1]); };
  const auto limited = [](const Tensors& in) {
    detail::SwiGluForm form;
    form.limit = 0.5;
    form.offset = 1.0;
    return detail::swiglu(in[0], in[1], form);
  };
  return {{"rms_norm", normalize},
          {"layer_norm",
           [](const Tensors& in) { return detail::layer_norm(in[0], in[2], in[3], 1e-5); }, 2},
          {"layer_norm without bias",
           [](const Tensors& in) { return detail::layer_norm(in[0], in[2], {}, 1e-5); }, 2},
          {"swiglu", gate},
          {"swiglu with a limit", limited},
          {"rms_norm, dropped",
           [=](const Tensors& in) { return detail::drop_elements(normalize(in), 0.3); }},
          {"swiglu, dropped twice", [=](const Tensors& in) {
             return detail::drop_elements(detail::drop_elements(gate(in), 0.3), 0.2);
           }}};
}

/// x, gate, weight and bias of a layer, then weight and bias of the Linear behind it.
Tensors make_leaves(at::ScalarType dtype) {
  torch::manual_seed(moved(1));
  Tensors leaves;
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{kBatch, kLength, kWidth},
                                                             {kBatch, kLength, kWidth},
                                                             {kWidth},
                                                             {kWidth},
                                                             {kOutputs, kWidth},
                                                             {kOutputs}}) {
    leaves.push_back(uniform(sizes, dtype).requires_grad_());
  }
  return leaves;
}

/// A tensor with the values and the history of `output`, but without its recipe.
at::Tensor without_recipe(const at::Tensor& output) { return output.view_as(output); }

struct Derivatives {
  Tensors first, second;
};

/// The output of layer and Linear and its gradients, and the gradients of these, where the input of
/// the Linear is kept or computed again.
Derivatives derivatives(const Layer& layer, const Tensors& leaves, bool keeps) {
  torch::manual_seed(moved(2));
  const auto y = layer.run(leaves);
  const auto input = keeps ? without_recipe(y) : y;
  EXPECT_EQ(static_cast<bool>(detail::find_recipe(input)), !keeps) << layer.name;
  const auto output = detail::linear(input, leaves[4], leaves[5]);
  const auto direction = uniform(output.sizes(), output.scalar_type()).requires_grad_();
  const auto gradients = [](const at::Tensor& of, const Tensors& by, const Tensors& from,
                            bool create_graph) {
    return torch::autograd::grad({of}, by, from, /*retain_graph=*/true, create_graph,
                                 /*allow_unused=*/true);
  };
  auto first = gradients(output, leaves, {direction}, false);
  auto sum = output.sum();
  for (const auto& gradient : gradients(output, leaves, {direction}, true)) {
    if (gradient.defined()) sum = sum + gradient.square().sum();
  }
  first.push_back(output.detach());
  return {first, gradients(sum, {leaves[0], leaves[4], direction}, {}, false)};
}

TEST(Recipes, GiveTheGradientsOfKeptInputs) {
  if (!detail::has_kernels()) GTEST_SKIP() << "there are no kernels";
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto leaves = make_leaves(dtype);
    for (const auto& layer : layers()) {
      const auto actual = derivatives(layer, leaves, /*keeps=*/false);
      const auto expected = derivatives(layer, leaves, /*keeps=*/true);
      EXPECT_TRUE(are_equal(actual.first, expected.first)) << layer.name << " " << dtype;
      // They may be added in another order.
      EXPECT_TRUE(are_alike(actual.second, expected.second, 64 * unit_roundoff(dtype)))
          << layer.name << " " << dtype;
    }
  }
}

/// A gradient of a gradient by the input of a Linear reaches that input, which was not kept.
TEST(Recipes, GiveTheInputItsHistory) {
  if (!detail::has_kernels()) GTEST_SKIP() << "there are no kernels";
  const auto leaves = make_leaves(at::kDouble);
  for (const auto& layer : layers()) {
    const auto y = layer.run(leaves);
    const auto output = detail::linear(y, leaves[4]);
    const auto gradient = torch::autograd::grad({output}, {leaves[4]}, {at::ones_like(output)},
                                                /*retain_graph=*/true, /*create_graph=*/true)[0];
    const auto found = torch::autograd::grad({gradient.sum()}, {y})[0];
    EXPECT_TRUE(is_close(found, at::full_like(y, kOutputs), 1e-9)) << layer.name;
  }
}

TEST(Recipes, LetOutputsBeFreed) {
  if (!detail::has_kernels()) GTEST_SKIP() << "there are no kernels";
  const auto leaves = make_leaves(at::kFloat);
  for (const auto& layer : layers()) {
    const auto kept = [&](bool keeps) {
      const AllocationCounter counter;
      auto y = layer.run(leaves);
      if (keeps) y = without_recipe(y);
      const auto output = detail::linear(y, leaves[4]);
      y.reset();
      return counter.live() - static_cast<int64_t>(output.nbytes());
    };
    const int64_t rows = kBatch * kLength, own = rows * layer.numbers_of_row * 4;
    EXPECT_EQ(kept(false), own) << layer.name;
    EXPECT_EQ(kept(true), own + rows * kWidth * 4) << layer.name;
  }
}

/// The gradient of the Linear's weight alone.
at::Tensor weight_gradient(const at::Tensor& output, const at::Tensor& direction,
                           const at::Tensor& weight) {
  return torch::autograd::grad({output}, {weight}, {direction})[0];
}

at::Tensor expected_gradient(const at::Tensor& input, const at::Tensor& direction) {
  return at::matmul(direction.flatten(0, 1).t(), input.detach().flatten(0, 1));
}

TEST(Recipes, SeeWhenTheirTensorsWereChanged) {
  if (!detail::has_kernels()) GTEST_SKIP() << "there are no kernels";
  const auto leaves = make_leaves(at::kFloat);
  const auto& weight = leaves[4];
  const auto direction = uniform({kBatch, kLength, kOutputs}, at::kFloat);
  for (const auto& layer : layers()) {
    const auto change = [](const at::Tensor& tensor) {
      const at::NoGradGuard no_grad;
      tensor.neg_();
    };
    // The output, before it is used: its values are kept.
    auto y = layer.run(leaves);
    EXPECT_FALSE(detail::find_recipe(y)->sources_of(y).empty()) << layer.name;
    change(y);
    EXPECT_TRUE(detail::find_recipe(y)->sources_of(y).empty()) << layer.name;
    EXPECT_TRUE(is_close(weight_gradient(detail::linear(y, weight), direction, weight),
                         expected_gradient(y, direction), 1e-4))
        << layer.name;
    // The output, after it was used: it is computed again.
    y = layer.run(leaves);
    auto output = detail::linear(y, weight);
    const auto expected = expected_gradient(y, direction);
    change(y);
    EXPECT_TRUE(is_close(weight_gradient(output, direction, weight), expected, 1e-4)) << layer.name;
    // A source, before the output is used.
    y = layer.run(leaves);
    change(leaves[0]);
    EXPECT_TRUE(is_close(weight_gradient(detail::linear(y, weight), direction, weight),
                         expected_gradient(y, direction), 1e-4))
        << layer.name;
    // A source, after it.
    y = layer.run(leaves);
    output = detail::linear(y, weight);
    change(leaves[0]);
    EXPECT_THROW(weight_gradient(output, direction, weight), c10::Error) << layer.name;
  }
}

/// The backward pass of a first use frees the layer's sources; a second use keeps the output.
TEST(Recipes, SeeWhenTheirTensorsAreGone) {
  if (!detail::has_kernels()) GTEST_SKIP() << "there are no kernels";
  const auto leaves = make_leaves(at::kFloat);
  const auto& weight = leaves[4];
  const auto direction = uniform({kBatch, kLength, kOutputs}, at::kFloat);
  for (const auto& layer : layers()) {
    Tensors own;
    for (size_t i = 0; i < 4; ++i) own.push_back(leaves[i] * 2);
    const auto y = layer.run(own);
    own.clear();
    detail::linear(y, weight).sum().backward();
    EXPECT_TRUE(detail::find_recipe(y)->sources_of(y).empty()) << layer.name;
    EXPECT_TRUE(is_close(weight_gradient(detail::linear(y, weight), direction, weight),
                         expected_gradient(y, direction), 1e-4))
        << layer.name;
  }
}

}  // namespace
}  // namespace heed::test::of_recipes
