// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/masks.h>
#include <heed/multi_head_attention.h>

#include "fixture.h"
#include "support/expect.h"

namespace heed::test::tensorflow {
namespace {

/// Both sides round in float32, TensorFlow's products in another order.
constexpr double kTolerance = 1e-5;

/// Written by tensorflow_functions.py with TensorFlow 2.21.
Fixture numbers() { return Fixture(HEED_PARITY_DATA "/tensorflow.pt"); }

TEST(TensorFlow, ScaledDotProductAttentionHidesWhereItsMaskIsOne) {
  const auto fixture = numbers();
  for (const auto device : devices()) {
    for (const std::string name : {"none", "padding", "look_ahead"}) {
      AttendOptions options;
      if (const auto mask = fixture.mask(name, device)) options.mask(from_hidden(*mask));
      const auto [output, weights] =
          attend_with_weights(fixture["query"].to(device), fixture["key"].to(device),
                              fixture["value"].to(device), options);
      EXPECT_TRUE(is_close(output, fixture[name + ".output"], kTolerance)) << name;
      EXPECT_TRUE(is_close(weights, fixture[name + ".weights"], kTolerance)) << name;
    }
  }
}

TEST(TensorFlow, MultiHeadAttentionHasNoInputProjections) {
  const auto fixture = numbers();
  const auto [attended, weights] =
      multi_head_attention_with_weights(fixture["x_query"], fixture["x_key"], fixture["x_value"],
                                        fixture.number("multi_head.num_heads"));
  const auto output =
      at::linear(attended, fixture["multi_head.kernel"].t(), fixture["multi_head.bias"]);
  EXPECT_TRUE(is_close(output, fixture["multi_head.output"], kTolerance));
  EXPECT_TRUE(is_close(weights, fixture["multi_head.weights"], kTolerance));
}

}  // namespace
}  // namespace heed::test::tensorflow
