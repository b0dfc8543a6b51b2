// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/merge_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/routes.h"

namespace heed::test::of_merge {
namespace {

/// Options of the keys [first, last) of all.
AttendOptions of_keys(const AttendOptions& options, int64_t first, int64_t last) {
  auto part = options;
  if (options.mask()) part.mask(options.mask()->slice(3, first, last));
  if (options.bias()) part.bias(options.bias()->slice(3, first, last));
  if (first > 0) part.sinks(std::nullopt);
  return part;
}

/// Attention to keys in three parts, one of which no query of the first sequence sees.
std::tuple<at::Tensor, at::Tensor> in_parts(const Inputs& inputs, const AttendOptions& options) {
  std::vector<at::Tensor> outputs, lses;
  for (const auto& [first, last] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 3}, {3, 4}, {4, inputs.key.size(2)}}) {
    const auto [output, lse] =
        attend_with_lse(inputs.query, inputs.key.slice(2, first, last),
                        inputs.value.slice(2, first, last), of_keys(options, first, last));
    outputs.push_back(output);
    lses.push_back(lse);
  }
  return merge_attention(outputs, lses);
}

TEST(MergeAttention, OfPartsIsAttentionToAll) {
  torch::manual_seed(moved(1));
  const Sizes s{2, 4, 2, 6, 40, 8, 5};
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto computed_in = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const auto inputs = make_inputs(s, dtype);
    auto mask = random_mask({s.B, s.H, s.L, s.S});
    mask[0].slice(2, 3, 4).fill_(false);
    mask[1][2][3].fill_(false);  // sees nothing
    const auto bias = uniform({1, s.H, 1, s.S}, computed_in).requires_grad_();
    const auto sinks = uniform({s.H}, computed_in).requires_grad_();
    const std::vector<AttendOptions> all = {AttendOptions().mask(mask),
                                            AttendOptions().mask(mask).bias(bias).softcap(2.0),
                                            AttendOptions().mask(mask).sinks(sinks).scale(3.0)};
    for (const auto& options : all) {
      auto leaves = leaves_of(inputs);
      if (options.bias()) leaves.push_back(bias);
      if (options.sinks()) leaves.push_back(sinks);
      const auto weight = uniform({s.B, s.H, s.L, s.Dv}, dtype);
      const auto lse_weight = uniform({s.B, s.H, s.L}, computed_in);
      const auto [expected, expected_lse] = attend_with_lse(inputs, options);
      const auto seen = expected_lse.isinf().logical_not();
      const auto wanted =
          torch::autograd::grad({expected, expected_lse}, leaves, {weight, lse_weight});
      for (const auto& route : routes()) {
        if (route.path == AttendPath::fused) continue;
        const ScopedRoute in_force(route);
        const auto [output, lse] = in_parts(inputs, options);
        ASSERT_EQ(output.scalar_type(), dtype);
        // Parts are rounded to the dtype, and so is the whole.
        EXPECT_TRUE(is_close(output, expected, 32 * unit_roundoff(dtype))) << route.name;
        EXPECT_TRUE(lse.isinf().equal(expected_lse.isinf()));
        EXPECT_TRUE(is_close(lse.masked_fill(seen.logical_not(), 0.0),
                             expected_lse.masked_fill(seen.logical_not(), 0.0),
                             64 * unit_roundoff(computed_in)))
            << route.name;
        const auto gradients = torch::autograd::grad({output, lse}, leaves, {weight, lse_weight});
        EXPECT_TRUE(are_close(gradients, wanted, 256 * unit_roundoff(dtype)))
            << route.name << ", " << dtype;
      }
    }
  }
}

TEST(MergeAttention, TakesPartsWithoutKeys) {
  torch::manual_seed(moved(2));
  const auto inputs = make_inputs(Sizes(), at::kFloat);
  const auto [output, lse] = attend_with_lse(inputs);
  const auto [none, none_lse] =
      attend_with_lse(inputs.query, inputs.key.slice(2, 0, 0), inputs.value.slice(2, 0, 0));
  EXPECT_EQ(none_lse.max().item<float>(), -std::numeric_limits<float>::infinity());
  const auto [merged, merged_lse] =
      merge_attention({none, output, none}, {none_lse, lse, none_lse});
  EXPECT_TRUE(merged.equal(output));
  EXPECT_TRUE(merged_lse.equal(lse));
  const auto [nothing, nothing_lse] = merge_attention({none, none}, {none_lse, none_lse});
  EXPECT_EQ(nothing.abs().max().item<float>(), 0.0F);
  EXPECT_TRUE(nothing_lse.equal(none_lse));
}

TEST(AttendWithLse, HasSecondDerivatives) {
  torch::manual_seed(moved(3));
  const Sizes s{1, 1, 1, 5, 5, 8, 8};
  auto inputs = make_inputs(s, at::kDouble);
  for (auto* tensor : {&inputs.query, &inputs.key}) tensor->requires_grad_();
  const auto [output, lse] = attend_with_lse(inputs, AttendOptions().causal(true));
  const auto first = torch::autograd::grad({output.square().sum() + lse.square().sum()},
                                           {inputs.query}, {}, true, /*create_graph=*/true)[0];
  const auto second = torch::autograd::grad({first.sum()}, {inputs.key})[0];
  // By differences of the first derivative.
  const double step = 1e-6;
  const auto first_at = [&](double shift) {
    auto key = inputs.key.detach().clone();
    key[0][0][1][2] += shift;
    const auto query = inputs.query.detach().requires_grad_();
    const auto [o, l] = attend_with_lse(query, key, inputs.value, AttendOptions().causal(true));
    return torch::autograd::grad({o.square().sum() + l.square().sum()}, {query})[0].sum();
  };
  const auto expected = ((first_at(step) - first_at(-step)) / (2 * step)).item<double>();
  EXPECT_NEAR(second[0][0][1][2].item<double>(), expected, 1e-7);
}

TEST(MergeAttentionErrors, NameThePartThatIsWrong) {
  const auto output = at::zeros({2, 3, 4, 5}), lse = at::zeros({2, 3, 4});
  const auto error = [](const std::vector<at::Tensor>& outputs,
                        const std::vector<at::Tensor>& lses) {
    return value_error([&] { merge_attention(outputs, lses); });
  };
  EXPECT_EQ(error({}, {}), "merge_attention: outputs size (0) must be at least 1");
  EXPECT_EQ(error({output}, {lse, lse}),
            "merge_attention: lses size (2) must equal outputs size (1)");
  EXPECT_EQ(error({output, {}}, {lse, lse}), "merge_attention: outputs[1] must be defined");
  EXPECT_EQ(error({output, output[0]}, {lse, lse}),
            "merge_attention: outputs[1] rank (3) must equal 4; outputs[1] [3, 4, 5]");
  EXPECT_EQ(error({output, output.slice(2, 1)}, {lse, lse}),
            "merge_attention: outputs[1] [2, 3, 3, 5] must have the shape [2, 3, 4, 5]");
  EXPECT_EQ(error({output, output.to(at::kHalf)}, {lse, lse}),
            "merge_attention: outputs[1] dtype (Half) must equal outputs[0] dtype (Float)");
  EXPECT_EQ(error({output}, {lse.slice(2, 1)}),
            "merge_attention: lses[0] [2, 3, 3] must have the shape [2, 3, 4]");
  EXPECT_EQ(error({output}, {lse.to(at::kDouble)}),
            "merge_attention: lses[0] dtype (Double) must be Float");
}

}  // namespace
}  // namespace heed::test::of_merge
