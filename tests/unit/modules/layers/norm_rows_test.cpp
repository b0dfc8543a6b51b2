// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/norm_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cpu/capability.h"
#include "cpu/layers/layer_norm.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

/// The kernels of norms, against their definition in float64.

namespace heed::test::of_norm_rows {
namespace {

using detail::NormParameters;

constexpr double kEps = 1e-3;

NormParameters make_norm(bool centers, int64_t dim, at::ScalarType dtype, bool has_bias) {
  return {centers, uniform({dim}, dtype) + 1, has_bias ? uniform({dim}, dtype) : at::Tensor(), kEps,
          centers ? 0.0 : 0.5};
}

at::Tensor defined(const at::Tensor& x, const NormParameters& norm) {
  const auto wide = x.to(at::kDouble);
  const auto centered = norm.centers ? wide - wide.mean(-1, /*keepdim=*/true) : wide;
  const auto mean_square = centered.square().mean(-1, /*keepdim=*/true);
  const auto result =
      centered / (mean_square + kEps).sqrt() * (norm.weight.to(at::kDouble) + norm.offset);
  return norm.bias.defined() ? result + norm.bias.to(at::kDouble) : result;
}

void expect_right(const NormParameters& norm, const at::Tensor& x, const at::Tensor& added) {
  // A few roundoffs of the largest value, and of the numbers that it is computed from.
  const auto close = 8 * unit_roundoff(x.scalar_type()) + 32 * unit_roundoff(at::kFloat);
  ASSERT_TRUE(detail::kernels_normalize(x, norm.weight, norm.bias));
  EXPECT_TRUE(are_alike({detail::normalize_rows(x, norm)}, {defined(x, norm)}, close));
  const auto both = detail::add_and_normalize(x, added, norm, /*keeps_sum=*/true);
  EXPECT_TRUE(at::equal(both.sum, x + added));
  EXPECT_TRUE(at::equal(both.normalized, detail::normalize_rows(both.sum, norm)));
  const auto alone = detail::add_and_normalize(x, added, norm, /*keeps_sum=*/false);
  EXPECT_FALSE(alone.sum.defined());
  EXPECT_TRUE(at::equal(alone.normalized, both.normalized));
}

TEST(NormRows, AreNormalizedInEveryInstructionSet) {
  torch::manual_seed(moved(1));
  for (const auto* set : detail::instruction_sets()) {
    const detail::ScopedInstructionSet in_force(*set);
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      const auto precise = dtype == at::kDouble ? at::kDouble : at::kFloat;
      for (const auto of_weight : {dtype, precise}) {
        for (const int64_t dim : {1, 15, 64, 385, 5000}) {
          SCOPED_TRACE(c10::str(set->name, " ", dtype, " by ", of_weight, " ", dim));
          const auto x = uniform({3, 5, dim}, dtype), added = uniform({3, 5, dim}, dtype);
          expect_right(make_norm(true, dim, of_weight, true), x, added);
          expect_right(make_norm(true, dim, of_weight, false), x, added);
          expect_right(make_norm(false, dim, of_weight, false), x, added);
        }
      }
    }
  }
}

/// The variance is not the difference of two large numbers.
TEST(NormRows, KeepDigitsBesideALargeMean) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  const auto x = uniform({4, 100}, at::kFloat) + 4096;
  const auto norm = make_norm(true, 100, at::kFloat, true);
  EXPECT_TRUE(is_close(detail::layer_norm(x, norm.weight, norm.bias, kEps), defined(x, norm),
                       4096 * 4 * unit_roundoff(at::kFloat)));
}

TEST(NormRows, ShowNaNAndInfinity) {
  const at::NoGradGuard no_grad;
  auto x = uniform({3, 40}, at::kFloat);
  x[1][7] = std::nan("");
  x[2][39] = INFINITY;
  const auto norm = make_norm(true, 40, at::kFloat, true);
  const auto y = detail::layer_norm(x, norm.weight, norm.bias, kEps);
  EXPECT_TRUE(y[1].isnan().all().item<bool>() && y[2].isnan().all().item<bool>());
  EXPECT_FALSE(y[0].isnan().any().item<bool>());
  // Equal numbers have no variance.
  const auto flat = detail::layer_norm(at::full({1, 40}, 3.0F), norm.weight, norm.bias, kEps);
  EXPECT_TRUE(at::equal(flat[0], norm.bias));
}

}  // namespace
}  // namespace heed::test::of_norm_rows
