// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/score_products.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <vector>

#include "cpu/capability.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

namespace heed::test::of_score_products {
namespace {

struct Sizes {
  int64_t rows, classes, width;
};

// Odd numbers of rows and classes, one class more than are taken at once, several panels of columns
// with a narrow one at the end, and classes for two threads, of which the second has fewer.
const std::vector<Sizes> kSizes = {{1, 1, 16}, {7, 385, 48}, {65, 769, 80}, {66, 6500, 144}};

detail::ScoreProduct random_product(const Sizes& sizes, at::ScalarType dtype) {
  return {uniform({sizes.rows, sizes.classes}, dtype), uniform({sizes.rows, sizes.width}, dtype),
          uniform({sizes.classes, sizes.width}, dtype)};
}

/// Whether there are kernels for products of this dtype.
bool multiplies(const detail::InstructionSet& set, at::ScalarType dtype) {
  return dtype == at::kFloat || (set.multiplies_bfloat16 && !set.has_tile_registers);
}

/// Calls visit(product) in every instruction set, for all sizes and dtypes.
template <typename Visit>
void for_products(const Visit& visit) {
  for (const auto* set : detail::instruction_sets()) {
    const detail::ScopedInstructionSet in_force(*set);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      if (!multiplies(*set, dtype)) continue;
      for (const auto& sizes : kSizes) {
        SCOPED_TRACE(c10::str(set->name, " ", dtype, " ", sizes.rows, " x ", sizes.classes, " x ",
                              sizes.width));
        visit(random_product(sizes, dtype));
      }
    }
  }
}

at::Tensor wide(const at::Tensor& tensor) { return tensor.to(at::kDouble); }

/// The error of sums of `terms` products in float32, as a share of the largest sum, which is about
/// the root of `terms`.
double bound(int64_t terms) {
  return 4 * unit_roundoff(at::kFloat) * std::sqrt(static_cast<double>(terms));
}

TEST(ScoreProducts, AreBothGradients) {
  torch::manual_seed(moved(1));
  for_products([](const detail::ScoreProduct& product) {
    const auto& [of_scores, x, weight] = product;
    const auto dtype = x.scalar_type();
    const auto of_x = wide(of_scores).mm(wide(weight)), of_weight = wide(of_scores).t().mm(wide(x));
    auto found_x = at::empty(x.sizes(), x.options());
    auto found_weight = at::full(weight.sizes(), NAN, at::kFloat);  // is overwritten
    detail::add_score_products(product, found_x, found_weight, /*is_first=*/true);
    EXPECT_TRUE(are_alike({found_x}, {of_x}, bound(weight.size(0)) + unit_roundoff(dtype)));
    EXPECT_TRUE(are_alike({found_weight}, {of_weight}, bound(x.size(0))));
    // The next block of rows is added.
    detail::add_score_products(product, found_x, found_weight, /*is_first=*/false);
    EXPECT_TRUE(are_alike({found_x}, {of_x}, bound(weight.size(0)) + unit_roundoff(dtype)));
    EXPECT_TRUE(are_alike({found_weight}, {2 * of_weight}, bound(x.size(0))));
  });
}

TEST(ScoreProducts, AreTheSameAlone) {
  torch::manual_seed(moved(2));
  for_products([](const detail::ScoreProduct& product) {
    const auto& [of_scores, x, weight] = product;
    const auto both_x = at::empty(x.sizes(), x.options()),
               alone_x = at::empty(x.sizes(), x.options());
    const auto both_weight = at::empty(weight.sizes(), at::kFloat),
               alone_weight = at::empty(weight.sizes(), at::kFloat);
    detail::add_score_products(product, both_x, both_weight, /*is_first=*/true);
    detail::add_score_products(product, alone_x, {}, /*is_first=*/true);
    detail::add_score_products(product, {}, alone_weight, /*is_first=*/true);
    EXPECT_TRUE(at::equal(both_x, alone_x));
    EXPECT_TRUE(at::equal(both_weight, alone_weight));
  });
}

/// Each thread has sums of its own, which take memory.
TEST(ScoreProducts, AreTakenOnlyWhereTheyFit) {
  const auto takes = [](const Sizes& sizes, at::ScalarType dtype) {
    const auto product = random_product({1, sizes.classes, sizes.width}, dtype);
    return detail::takes_score_products(product.x, product.weight, sizes.rows);
  };
  const auto& set = detail::instruction_set();
  const bool can = set.vector_bytes >= 64 && detail::blas_properties().foreign_mkl;
  const auto threads = at::get_num_threads();
  const Sizes fits{64, threads * 3072, 64};
  EXPECT_EQ(takes(fits, at::kFloat), can);
  EXPECT_EQ(takes(fits, at::kBFloat16), can && multiplies(set, at::kBFloat16));
  EXPECT_FALSE(takes(fits, at::kDouble) || takes(fits, at::kHalf));
  EXPECT_FALSE(takes({fits.rows - 1, fits.classes, fits.width}, at::kFloat));
  EXPECT_FALSE(takes({fits.rows, fits.classes - 1, fits.width}, at::kFloat));
  EXPECT_FALSE(takes({fits.rows, fits.classes, fits.width + 8}, at::kFloat));
  EXPECT_FALSE(takes({(int64_t{1} << 15) / threads + 1, fits.classes, fits.width}, at::kFloat));
}

}  // namespace
}  // namespace heed::test::of_score_products
