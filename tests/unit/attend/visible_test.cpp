// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/reference_cases.h"
#include "unit/routes.h"

// NaN and infinity that a query sees show in its output: of queries, keys and values, on every
// path. The build runs these tests for every instruction set as well.

namespace heed::test::visible {
namespace {

/// softmax(QK^T / sqrt(D)) V in float64, with hidden keys left out.
struct Expected {
  at::Tensor output;
  at::Tensor nothing;  // [B, H, L]: whether no key has a score above -inf
};

Expected by_operators(const Inputs& inputs, bool causal) {
  const auto query = inputs.query.to(at::kDouble), key = inputs.key.to(at::kDouble);
  const auto value = inputs.value.to(at::kDouble);
  const auto L = query.size(2), S = key.size(2);
  auto seen = at::ones({L, S}, at::kBool);
  if (causal) seen = seen.tril(S - L);
  const auto products =
      at::matmul(query, key.transpose(2, 3)) / std::sqrt(static_cast<double>(query.size(3)));
  const auto scores = at::where(seen, products, -std::numeric_limits<double>::infinity());
  const auto weights = scores.softmax(3).unsqueeze(4);
  const auto terms = at::where(seen.unsqueeze(2), weights * value.unsqueeze(2), 0.0);
  return {terms.sum(3), scores.eq(-std::numeric_limits<double>::infinity()).all(3)};
}

/// A row without a score above -inf is 0, as if nothing were seen, or NaN.
::testing::AssertionResult shows(const at::Tensor& actual, const Expected& expected,
                                 double tolerance) {
  const auto found = actual.to(at::kDouble);
  const auto nothing = expected.nothing.unsqueeze(3);
  const auto either = nothing.logical_and(found.eq(0).logical_or(found.isnan()));
  const auto same = found.isnan()
                        .logical_and(expected.output.isnan())
                        .logical_or(found.eq(expected.output));  // NaN, infinity
  const auto close = (found - expected.output).abs().le(tolerance);
  const auto good = either.logical_or(same).logical_or(close);
  if (good.all().item<bool>()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << good.logical_not().sum().item<int64_t>() << " of "
                                       << good.numel() << " elements are wrong";
}

class Visible : public ::testing::TestWithParam<at::ScalarType> {};

INSTANTIATE_TEST_SUITE_P(Dtypes, Visible, kDtypes, kNamed);

void expect_all_show(const Inputs& inputs, const AttendOptions& options, at::ScalarType dtype) {
  const auto expected = by_operators(inputs, options.causal());
  for (const auto& route : all_routes()) {
    const ScopedRoute in_force(route);
    for (const bool training : {false, true}) {
      const auto query = inputs.query.detach().requires_grad_(training);
      const auto output = attend(query, inputs.key, inputs.value, options);
      EXPECT_TRUE(shows(output.detach(), expected, forward_tolerance(dtype)))
          << route.name << (training ? ", training" : ", inference")
          << (options.causal() ? ", causal" : "");
    }
  }
}

TEST_P(Visible, NanAndInfinityShow) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  torch::manual_seed(moved(1));
  for (const int64_t S : {1, 2, 3, 5, 7, 8, 12, 15, 16, 17, 31, 32, 512}) {
    for (const int64_t L : {1, 5, 40}) {
      const Sizes sizes{1, 2, 1, L, S, 8, 8};
      for (const auto member : {&Inputs::query, &Inputs::key, &Inputs::value}) {
        for (const double number : {std::nan(""), kInfinity, -kInfinity}) {
          const auto inputs = make_inputs(sizes, GetParam());
          const auto& tensor = inputs.*member;
          tensor.select(2, tensor.size(2) / 2).select(2, 3).fill_(number);
          SCOPED_TRACE("S " + std::to_string(S) + ", L " + std::to_string(L) + ", " +
                       std::to_string(number) + " in " +
                       (member == &Inputs::query ? "query"
                        : member == &Inputs::key ? "key"
                                                 : "value"));
          expect_all_show(inputs, AttendOptions(), GetParam());
          if (L <= S) expect_all_show(inputs, AttendOptions().causal(true), GetParam());
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace heed::test::visible
