// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/scaled_dot_product_attention.h>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test::of_scaled_dot_product_attention {
namespace {

/// As in modules_test.cpp: up to five products of sums of up to 12 terms, each below 2 in size.
const double kTolerance = 64 * unit_roundoff(at::kFloat);

TEST(ScaledDotProductAttention, DividesByItsTemperature) {
  torch::manual_seed(moved(1));
  const auto inputs = make_inputs({2, 4, 2, 3, 7, 6, 5}, at::kFloat);
  const auto mask = at::rand({2, 3, 7}).gt(0.4);
  ScaledDotProductAttention module(1.7);
  module->eval();
  const auto [output, weights] = module(inputs.query, inputs.key, inputs.value, mask);
  const auto wanted = reference(inputs, AttendOptions().mask(mask).scale(1 / 1.7));
  EXPECT_TRUE(is_close(output, wanted.output, kTolerance));
  EXPECT_TRUE(is_close(weights, wanted.weights, kTolerance));
  EXPECT_EQ(printed(module), "heed::ScaledDotProductAttention(temperature=1.7, dropout=0.1)");
  module->train();
  EXPECT_FALSE(std::get<1>(module(inputs.query, inputs.key, inputs.value, mask)).equal(weights));
  const auto clone = module->clone();
  EXPECT_TRUE(clone->is_training());
}

TEST(ScaledDotProductAttention, NamesTheOptionThatIsWrong) {
  EXPECT_ERROR("ScaledDotProductAttention: temperature (0) must be finite and not 0",
               ScaledDotProductAttention module(0.0));
  EXPECT_ERROR("ScaledDotProductAttention: dropout (1.5) must be in [0, 1)",
               ScaledDotProductAttention module(2.0, 1.5));
}

}  // namespace
}  // namespace heed::test::of_scaled_dot_product_attention
