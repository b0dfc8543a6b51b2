// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/alibi.h>
#include <heed/attend.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "core/forced_path.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/reference.h"
#include "support/seeds.h"
#include "unit/reference_cases.h"
#include "unit/routes.h"

namespace heed::test {
namespace {

/// The options that change scores: softcap, ALiBi, sinks and all of them.
AttendOptions with_extras(AttendOptions options, int which, int64_t heads, at::Device device) {
  if (which == 0 || which == 3) options.softcap(0.8);
  if (which == 1 || which == 3) options.alibi_slopes(alibi_slopes(heads).to(device));
  if (which == 2 || which == 3) {
    options.sinks(uniform({heads}, at::device(device).dtype(at::kFloat)).requires_grad_());
  }
  return options;
}

/// Each of them with what else attend does.
std::vector<ReferenceCase> score_cases(at::Device device) {
  const char* const names[] = {"softcap", "ALiBi", "sinks", "all"};
  std::vector<ReferenceCase> cases;
  for (const int64_t groups : {4, 2}) {
    for (const auto& [L, S] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 70}, {5, 5}, {9, 4}, {3, 65}}) {
      for (int which = 0; which < 4; ++which) {
        Sizes s;
        s.G = groups;
        s.L = L;
        s.S = S;
        s.Dv = cases.size() % 3 == 0 ? 5 : s.D;
        auto mask = at::rand({s.B, s.H, L, S}, at::device(device)).gt(0.4);
        mask[0][0].fill_(false);
        const auto bias = uniform({1, s.H, 1, S}, at::device(device).dtype(at::kFloat));
        const std::vector<std::pair<const char*, AttendOptions>> others = {
            {"plain", AttendOptions()},
            {"causal", AttendOptions().causal(true)},
            {"window", AttendOptions().window(3).scale(1.7)},
            {"mask", AttendOptions().mask(mask)},
            {"bias", AttendOptions().bias(bias.requires_grad_()).causal(true)},
        };
        for (const auto& [name, options] : others) {
          cases.push_back({s, with_extras(options, which, s.H, device),
                           "G " + std::to_string(groups) + ", L " + std::to_string(L) + ", S " +
                               std::to_string(S) + ", " + names[which] + ", " + name,
                           which == 1});
        }
      }
    }
  }
  return cases;
}

constexpr double kLargestScore = 64;  // of ALiBi, S - 1

class AttendScores : public ::testing::TestWithParam<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(Dtypes, AttendScores, kDtypes, kNamed);

TEST_P(AttendScores, InferenceEqualsTheReference) {
  torch::manual_seed(moved(1));
  for (const auto device : devices()) {
    expect_outputs_of_reference(score_cases(device), at::device(device).dtype(GetParam()),
                                kLargestScore);
  }
}

TEST_P(AttendScores, GradientsEqualTheReference) {
  torch::manual_seed(moved(2));
  for (const auto device : devices()) {
    expect_gradients_of_reference(score_cases(device), at::device(device).dtype(GetParam()),
                                  kLargestScore);
  }
}

/// Scores from 1e-6 to 1e6 caps, where a cap by e^2x alone would lose the small ones.
TEST(AttendSoftcap, IsExactForSmallAndLargeScores) {
  torch::manual_seed(moved(3));
  const Sizes s{2, 4, 4, 40, 50, 8, 8};
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    auto inputs = make_inputs(s, dtype);
    // Products are exact: a sum that nearly cancels would err by as much as a cap, times 1e6.
    for (auto* const tensor : {&inputs.query, &inputs.key}) *tensor = (*tensor * 16).round() / 16;
    for (const double scale : {1e-6, 1e-2, 1.0, 1e6}) {
      const auto options = AttendOptions().scale(scale).softcap(1.0);
      const auto expected = reference(inputs, options).output;
      for (const auto& route : routes()) {
        if (route.path == AttendPath::fused) continue;
        const ScopedRoute in_force(route);
        EXPECT_TRUE(is_close(attend(inputs, options), expected, 32 * unit_roundoff(dtype)))
            << route.name << ", scale " << scale;
      }
    }
  }
}

/// The largest cap changes nothing, the smallest leaves nothing of the scores: gradients, which the
/// cap multiplies and divides, neither overflow nor vanish on the way.
TEST(AttendSoftcap, KeepsGradientsAtItsLimits) {
  torch::manual_seed(moved(3));
  const auto grads_of = [](const Inputs& inputs, const AttendOptions& options) {
    const auto leaf = [](const at::Tensor& tensor) { return tensor.detach().requires_grad_(); };
    const auto query = leaf(inputs.query), key = leaf(inputs.key);
    const auto [output, weights] = attend_with_weights(query, key, inputs.value, options);
    (output.sum() + 1e10 * weights.square().sum()).backward();
    return std::pair(query.grad(), key.grad());
  };
  for (const auto& [dtype, most] : {std::pair(at::kFloat, 1e18), std::pair(at::kDouble, 1e150)}) {
    const auto inputs = make_inputs(Sizes(), dtype);
    const auto [query_grad, key_grad] = grads_of(inputs, AttendOptions());
    const auto [query_capped, key_capped] = grads_of(inputs, AttendOptions().softcap(most));
    EXPECT_TRUE(is_close(query_capped / 1e10, query_grad / 1e10, 64 * unit_roundoff(dtype)));
    EXPECT_TRUE(is_close(key_capped / 1e10, key_grad / 1e10, 64 * unit_roundoff(dtype)));
    const auto [query_lost, key_lost] = grads_of(inputs, AttendOptions().softcap(1.0 / most));
    EXPECT_EQ(query_lost.abs().max().item<double>() + key_lost.abs().max().item<double>(), 0.0);
  }
}

/// All keys weigh the same; hidden ones nothing.
TEST(AttendScale, MayBeZeroInFloat) {
  torch::manual_seed(moved(3));
  const auto inputs = make_inputs(Sizes(), at::kFloat);
  for (const double scale : {1e-46, 1e-40}) {
    const auto options = AttendOptions().causal(true).scale(scale);
    const auto expected = reference(inputs, options).output;
    for (const auto& route : routes()) {
      const ScopedRoute in_force(route);
      EXPECT_TRUE(is_close(attend(inputs, options), expected, 32 * unit_roundoff(at::kFloat)))
          << route.name << ", scale " << scale;
    }
  }
}

/// A query without keys gives 0, and all of its weight to the sink; a sink of -inf is none.
TEST(AttendSinks, TakeTheWeightThatNoKeyTakes) {
  torch::manual_seed(moved(4));
  const Sizes s;
  const auto inputs = make_inputs(s, at::kFloat);
  const auto none = at::zeros({s.L, s.S}, at::kBool);
  const auto infinity = std::numeric_limits<double>::infinity();
  const auto sinks = at::tensor({0.0, 1.0, 50.0, -infinity});
  const auto endless = at::tensor({infinity, 1e300, 0.0, 0.0});  // both inf in float32
  for (const auto& route : routes()) {
    if (route.path == AttendPath::fused) continue;
    const ScopedRoute in_force(route);
    const auto hidden = attend(inputs, AttendOptions().mask(none).sinks(sinks));
    EXPECT_TRUE(is_close(hidden, at::zeros_like(hidden), 0.0)) << route.name;
    const auto output = attend(inputs, AttendOptions().sinks(sinks));
    const auto without = attend(inputs);
    EXPECT_TRUE(is_close(output.select(1, 3), without.select(1, 3), 1e-6)) << route.name;
    EXPECT_TRUE(is_close(output.select(1, 2), at::zeros_like(output.select(1, 2)), 1e-20));
    const auto all_taken = attend(inputs, AttendOptions().sinks(endless));
    EXPECT_EQ(all_taken.narrow(1, 0, 2).abs().max().item<double>(), 0.0) << route.name;
    EXPECT_TRUE(all_taken.isfinite().all().item<bool>()) << route.name;
  }
}

/// The distance alone decides then: the nearest or the farthest key takes all of the weight.
TEST(AttendAlibi, TakesSlopesOfAnySize) {
  torch::manual_seed(moved(6));
  Sizes s;
  s.S = 9;
  const auto slopes = at::tensor({1e300, -1e300, 1e38, -1e38}, at::kDouble);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto inputs = make_inputs(s, dtype);
    for (const bool causal : {false, true}) {
      const auto options = AttendOptions().causal(causal).alibi_slopes(slopes);
      const auto expected = reference(inputs, options).output;
      for (const auto& route : routes()) {
        const ScopedRoute in_force(route);
        EXPECT_TRUE(is_close(attend(inputs, options), expected, 4 * unit_roundoff(dtype)))
            << route.name << ", " << dtype;
      }
    }
  }
}

TEST(AttendScores, ChooseKernelsWithoutAnLTimesSMatrix) {
  if (!detail::has_kernels()) GTEST_SKIP() << kNoKernels;
  const at::NoGradGuard no_grad;
  Sizes s;
  for (const int64_t length : {1, 64}) {
    s.L = s.S = length;
    const auto inputs = make_inputs(s, at::kFloat);
    const auto expected = length == 1 ? AttendPath::decode : AttendPath::block;
    for (int which = 0; which < 4; ++which) {
      EXPECT_EQ(attend_path(inputs, with_extras(AttendOptions(), which, s.H, at::kCPU)), expected);
    }
  }
}

TEST(AttendScoresErrors, NameTheArgumentAndItsValue) {
  const auto inputs = make_inputs(Sizes(), at::kFloat);
  const auto error = [&](const AttendOptions& options) {
    return value_error([&] { attend(inputs, options); });
  };
  EXPECT_EQ(error(AttendOptions().softcap(0.0)), "attend: softcap (0) must be finite and above 0");
  EXPECT_EQ(error(AttendOptions().softcap(std::nan(""))),
            "attend: softcap (nan) must be finite and above 0");
  // Products with it would leave float32, in which the scores are computed.
  EXPECT_EQ(error(AttendOptions().softcap(1.1e18)),
            "attend: softcap (1.1e+18) must be from 1e-18 to 1e+18 in Float");
  EXPECT_EQ(error(AttendOptions().softcap(9e-19)),
            "attend: softcap (9e-19) must be from 1e-18 to 1e+18 in Float");
  EXPECT_EQ(error(AttendOptions().scale(1e39)), "attend: scale (1e+39) must be finite in Float");
  const auto precise = make_inputs(Sizes(), at::kDouble);
  EXPECT_ERROR("attend: softcap (1e+151) must be from 1e-150 to 1e+150 in Double",
               attend(precise, AttendOptions().softcap(1e151)));
  attend(precise, AttendOptions().softcap(1e39).scale(1e39));
  EXPECT_EQ(error(AttendOptions().sinks(at::zeros({3}))),
            "attend: sinks dim 0 (3) must equal query dim 1 (4); query [2, 4, 5, 8]");
  EXPECT_EQ(error(AttendOptions().sinks(at::zeros({4}, at::kLong))),
            "attend: sinks dtype (Long) must be Float, Double, BFloat16 or Half");
  EXPECT_EQ(error(AttendOptions().alibi_slopes(at::zeros({1, 4}))),
            "attend: alibi_slopes dim 0 (1) must equal query dim 0 (2); query [2, 4, 5, 8], "
            "alibi_slopes [1, 4]");
  EXPECT_EQ(error(AttendOptions().alibi_slopes(at::zeros({2, 1, 4}))),
            "attend: alibi_slopes rank (3) must equal 1; alibi_slopes [2, 1, 4]");
  EXPECT_ERROR("alibi_slopes: heads (0) must be at least 1", alibi_slopes(0));
}

TEST(Attend, TakesASinkOfMinusInfinityWhereThereAreNoKeys) {
  auto inputs = make_inputs(Sizes(), at::kFloat);
  inputs.query.requires_grad_();
  const auto none = inputs.key.narrow(2, 0, 0);
  const auto sinks =
      at::full({4}, -std::numeric_limits<double>::infinity(), at::kFloat).requires_grad_();
  const auto output = attend(inputs.query, none, none, AttendOptions().sinks(sinks));
  output.sum().backward();
  EXPECT_TRUE(is_close(output, at::zeros(output.sizes()), 0.0));
  EXPECT_TRUE(is_close(sinks.grad(), at::zeros({4}), 0.0));
  EXPECT_TRUE(is_close(inputs.query.grad(), at::zeros(inputs.query.sizes()), 0.0));
}

/// Positions that float32 does not have; keys by strides. Weights fall by the distance alone.
TEST(Attend, CountsDistancesExactlyAtAnyPosition) {
  const at::NoGradGuard no_grad;
  constexpr int64_t S = (1 << 24) + 7, kNear = 32;
  const auto query = at::zeros({1, 1, 1, 1}), key = query.expand({1, 1, S, 1});
  const auto options = AttendOptions().alibi_slopes(at::full({1}, 0.5));
  auto expected = at::arange(kNear - 1, -1, -1, at::kDouble).mul(-0.5).exp();
  expected = (expected / expected.sum()).view({1, 1, 1, kNear});
  for (const auto path : {AttendPath::math, AttendPath::block}) {
    const detail::ScopedPath scope(path);
    const auto weights = std::get<1>(attend_with_weights(query, key, key, options));
    EXPECT_TRUE(is_close(weights.narrow(3, S - kNear, kNear), expected, 1e-6));
  }
  auto value = at::zeros({1, 1, S, 1});
  value.narrow(2, S - 1, 1).fill_(1);
  for (const auto path : {AttendPath::decode, AttendPath::block, AttendPath::fused}) {
    const detail::ScopedPath scope(path);
    EXPECT_TRUE(
        is_close(attend(query, key, value, options), expected.narrow(3, kNear - 1, 1), 1e-6));
  }
}

/// The paper's: a geometric sequence for powers of two, and its rule for other numbers.
TEST(AlibiSlopes, AreThePapers) {
  EXPECT_TRUE(is_close(
      alibi_slopes(8),
      at::tensor({0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625}), 0.0));
  EXPECT_TRUE(is_close(alibi_slopes(6),
                       at::tensor({0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125}), 1e-8));
  EXPECT_TRUE(is_close(alibi_slopes(1), at::tensor({0.00390625}), 0.0));
}

}  // namespace
}  // namespace heed::test
