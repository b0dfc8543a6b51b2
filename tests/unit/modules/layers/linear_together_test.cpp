// SPDX-License-Identifier: BSD-3-Clause
#include "modules/layers/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <vector>

#include "support/expect.h"
#include "support/seeds.h"
#include "unit/modules/layers/linear_cases.h"

namespace heed::test::of_linear {
namespace {

using detail::linear;

TEST(Linear, IsTheSameForLayersTogether) {
  torch::manual_seed(moved(8));
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const auto& size : kSizes) {
      const auto first = as_leaves(make_tensors(size, dtype), dtype);
      const auto second =
          as_leaves(make_tensors({{size.depth()}, size.outputs + 70}, dtype, false), dtype);
      const std::vector<detail::LinearParameters> layers = {
          {first.weight, first.bias}, {second.weight, second.bias}, {first.weight, {}}};
      const auto compare = [&](bool records) {
        const auto together = detail::linear_together(first.input, layers);
        for (size_t i = 0; i < layers.size(); ++i) {
          EXPECT_TRUE(at::equal(together[i], linear(first.input, layers[i].weight, layers[i].bias)))
              << dtype << size.input << " " << i;
          EXPECT_EQ(together[i].requires_grad(), records);
        }
      };
      compare(true);
      const at::NoGradGuard no_grad;
      compare(false);
    }
  }
}

/// First and second derivatives, with an output that has no gradient and without.
TEST(Linear, HasTheSameGradientsForLayersTogether) {
  torch::manual_seed(moved(9));
  for (const auto& size : kProducts) {
    for (const size_t used : {3, 2}) {
      const auto given = make_tensors(size, at::kFloat);
      const auto other = make_tensors({{size.depth()}, size.outputs}, at::kFloat);
      const auto derivatives = [&](const auto& function, at::ScalarType type) {
        const auto first = as_leaves(given, type), second = as_leaves(other, type);
        auto outputs = function(
            first.input, {{first.weight, {}}, {second.weight, second.bias}, {first.weight, {}}});
        std::vector<at::Tensor> leaves = {first.input, first.weight, second.weight, second.bias};
        auto sum = outputs[0].mean();
        for (size_t i = 1; i < used; ++i) sum = sum + (outputs[i] * outputs[i]).mean();
        auto result = torch::autograd::grad({sum}, leaves, {}, /*retain_graph=*/true);
        const auto again = torch::autograd::grad({sum}, leaves, {}, /*retain_graph=*/true,
                                                 /*create_graph=*/true);
        auto squares = again[0].square().mean();
        for (size_t i = 1; i < again.size(); ++i) squares = squares + again[i].square().mean();
        const auto second_derivatives = torch::autograd::grad({squares}, leaves);
        result.insert(result.end(), second_derivatives.begin(), second_derivatives.end());
        return result;
      };
      const auto actual = derivatives(detail::linear_together, at::kFloat);
      const auto expected = derivatives(
          [](const at::Tensor& input, const std::vector<detail::LinearParameters>& layers) {
            std::vector<at::Tensor> outputs;
            for (const auto& [weight, bias] : layers) {
              outputs.push_back(at::linear(input, weight, bias));
            }
            return outputs;
          },
          at::kDouble);
      EXPECT_TRUE(are_alike(actual, expected, 64 * unit_roundoff(at::kFloat)))
          << size.input << " " << used;
    }
  }
}

TEST(Linear, RecordsForLayersTogetherWhatEachAloneRecords) {
  for (const auto& size : kProducts) {
    const auto leaves = as_leaves(make_tensors(size, at::kFloat), at::kFloat);
    const auto frozen = make_tensors(size, at::kFloat);
    leaves.input.requires_grad_(false);
    const auto outputs = detail::linear_together(
        leaves.input, {{leaves.weight, leaves.bias}, {frozen.weight, frozen.bias}});
    EXPECT_TRUE(outputs[0].requires_grad());
    EXPECT_FALSE(outputs[1].requires_grad());
    outputs[0].sum().backward();
    EXPECT_TRUE(leaves.weight.grad().defined());
    EXPECT_FALSE(leaves.input.grad().defined());
  }
}

/// A node that keeps an unused weight's gradient away costs a product.
TEST(Linear, ComputesForLayersTogetherOnlyWhatIsAskedFor) {
  const Size size = {{130, 257}, 259};
  const auto first = as_leaves(make_tensors(size, at::kFloat), at::kFloat);
  const auto second = as_leaves(make_tensors(size, at::kFloat), at::kFloat);
  second.weight.requires_grad_(false);
  const auto outputs = detail::linear_together(
      first.input, {{first.weight, first.bias}, {second.weight, second.bias}});
  (outputs[0] + outputs[1]).sum().backward();
  EXPECT_TRUE(first.weight.grad().defined());
  EXPECT_FALSE(second.weight.grad().defined());
  EXPECT_TRUE(second.bias.grad().defined());
}

}  // namespace
}  // namespace heed::test::of_linear
