// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/autocast_mode.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>
#include <heed/autocast.h>

#include "support/expect.h"
#include "support/inputs.h"

namespace heed::test {
namespace {

bool is_on() { return at::autocast::is_autocast_enabled(at::kCPU); }

at::ScalarType dtype_of_a_product() {
  const auto x = uniform({2, 4}, at::kFloat);
  return at::linear(x, x).scalar_type();
}

TEST(Autocast, RestoresWhatItFound) {
  ASSERT_FALSE(is_on());
  const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
  {
    const Autocast outer(at::kCPU, at::kBFloat16);
    EXPECT_EQ(dtype_of_a_product(), at::kBFloat16);
    {
      const Autocast inner(at::kCPU, at::kHalf);
      EXPECT_EQ(dtype_of_a_product(), at::kHalf);
    }
    EXPECT_EQ(dtype_of_a_product(), at::kBFloat16);
    {
      const Autocast off(at::kCPU, at::kFloat);
      EXPECT_EQ(dtype_of_a_product(), at::kFloat);
    }
    EXPECT_EQ(dtype_of_a_product(), at::kBFloat16);
  }
  EXPECT_FALSE(is_on());
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), dtype);
  EXPECT_EQ(dtype_of_a_product(), at::kFloat);
}

TEST(Autocast, ForgetsConvertedWeightsAtTheEnd) {
  auto weight = uniform({3, 4}, at::kFloat).requires_grad_();
  const auto x = uniform({2, 4}, at::kFloat);
  const auto product = [&] {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    return at::linear(x, weight).detach();
  };
  const auto before = product();
  {
    const at::NoGradGuard no_grad;
    weight.add_(1.0);  // an optimizer's step
  }
  EXPECT_FALSE(product().equal(before));
}

TEST(Autocast, RefusesWhatProductsAreNotComputedIn) {
  EXPECT_ERROR("Autocast: dtype (Double) must be BFloat16, Half or Float",
               Autocast(at::kCPU, at::kDouble));
  EXPECT_FALSE(is_on());
}

}  // namespace
}  // namespace heed::test
