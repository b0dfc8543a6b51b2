// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cpu/isa/scores.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/routes.h"

namespace heed::test {
namespace {

constexpr double kDropout = 0.3;

/// Equal scores make every weight 1 / S before dropout: what was kept shows in the weights, and
/// with a value of 1 also in the output.
Inputs equal_scores(const Sizes& s, at::Device device) {
  const auto options = at::device(device).dtype(at::kFloat);
  return {at::zeros({s.B, s.H, s.L, s.D}, options), at::zeros({s.B, s.G, s.S, s.D}, options),
          at::ones({s.B, s.G, s.S, s.Dv}, options)};
}

TEST(Dropout, KeepsItsShareOfTheWeightsAndScalesThem) {
  torch::manual_seed(moved(1));
  Sizes sizes;
  sizes.L = sizes.S = 256;
  for (const auto device : devices()) {
    const auto inputs = equal_scores(sizes, device);
    const auto options = AttendOptions().dropout(kDropout);
    const auto weights = std::get<1>(attend_with_weights(inputs, options));
    const auto kept = weights.ne(0);
    const auto scaled = weights.masked_select(kept) * sizes.S * (1 - kDropout);
    EXPECT_TRUE(is_close(scaled, at::ones(scaled.sizes()), 1e-5));

    const auto draws = static_cast<double>(weights.numel());
    const auto sigma = std::sqrt(kDropout * (1 - kDropout) / draws);
    EXPECT_NEAR(kept.sum().item<double>() / draws, 1 - kDropout, 4 * sigma);

    // The output shows it as well: mean 1, its rows spread as binomials.
    const auto output = attend(inputs, options).select(3, 0);
    const auto row_variance = kDropout / (1 - kDropout) / static_cast<double>(sizes.S);
    const auto rows = static_cast<double>(output.numel());
    EXPECT_NEAR(output.mean().item<double>(), 1.0, 4 * std::sqrt(row_variance / rows));
    EXPECT_NEAR(output.var().item<double>() / row_variance, 1.0, 4 * std::sqrt(2 / rows));
  }
}

TEST(Dropout, FollowsTheManualSeed) {
  Sizes sizes;
  sizes.L = sizes.S = 16;
  for (const auto device : devices()) {
    const auto inputs = make_inputs(sizes, at::device(device).dtype(at::kFloat));
    const auto run = [&](uint64_t seed) {
      torch::manual_seed(moved(seed));
      return attend(inputs, AttendOptions().dropout(kDropout));
    };
    const auto first = run(1);
    EXPECT_TRUE(first.equal(run(1)));
    EXPECT_FALSE(first.equal(run(2)));
    EXPECT_FALSE(attend(inputs, AttendOptions().dropout(kDropout))
                     .equal(attend(inputs, AttendOptions().dropout(kDropout))));
  }
}

TEST(Dropout, ReturnsTheWeightsItAppliedAndTheirGradients) {
  torch::manual_seed(moved(2));
  const Sizes sizes{2, 4, 2, 6, 9, 8, 8};
  for (const auto device : devices()) {
    for (const bool causal : {false, true}) {
      const auto inputs = make_inputs(sizes, at::device(device).dtype(at::kDouble));
      const auto leaves = leaves_of(inputs);
      const auto options = AttendOptions().causal(causal).dropout(kDropout);
      const auto [output, weights] = attend_with_weights(inputs, options);
      const auto gradient = uniform(output.sizes(), at::kDouble).to(device);

      auto input = reference_input(inputs, options, gradient);
      input.kept = weights.ne(0).to(at::kDouble) / (1 - kDropout);
      const auto expected = reference_attention(input);
      EXPECT_TRUE(is_close(output, expected.output, 1e-14));
      EXPECT_TRUE(is_close(weights, expected.weights, 1e-14));
      const auto gradients = torch::autograd::grad({output}, leaves, {gradient});
      EXPECT_TRUE(is_close(gradients[0], expected.query_grad, 1e-14));
      EXPECT_TRUE(is_close(gradients[1], expected.key_grad, 1e-13));
      EXPECT_TRUE(is_close(gradients[2], expected.value_grad, 1e-13));
    }
  }
}

class DropoutKernel : public KernelTest {};

/// 2^30 draws, a few more than 10^9: the fraction dropped of all, of each row and of each column.
TEST_F(DropoutKernel, DropsItsShareOfABillionDraws) {
  constexpr int64_t kRows = 1 << 17, kKeys = 1 << 13;
  constexpr double kDropped = 0.1;
  constexpr auto kThreshold = static_cast<uint32_t>(kDropped * 0x1p32);
  std::vector<uint32_t> words(kKeys), by_column(kKeys);
  double all = 0, furthest_row = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    detail::instruction_set().scores.draw(1, static_cast<uint32_t>(row >> 14),
                                          static_cast<uint32_t>(row & 0x3fff), 0, kKeys / 64,
                                          words.data());
    uint32_t in_row = 0;
    for (int64_t j = 0; j < kKeys; ++j) {
      const uint32_t dropped = words[j] < kThreshold ? 1 : 0;
      in_row += dropped;
      by_column[j] += dropped;
    }
    all += in_row;
    furthest_row = std::max(furthest_row, std::abs(in_row - kDropped * kKeys));
  }
  double furthest_column = 0;
  for (const auto in_column : by_column) {
    furthest_column = std::max(furthest_column, std::abs(in_column - kDropped * kRows));
  }
  const auto sigma = [](double draws) { return std::sqrt(kDropped * (1 - kDropped) * draws); };
  EXPECT_LT(std::abs(all - kDropped * kRows * kKeys), 4 * sigma(kRows * kKeys));
  // The largest of many: beyond 5.5 sigma for one generator in 200.
  EXPECT_LT(furthest_row, 5.5 * sigma(kKeys));
  EXPECT_LT(furthest_column, 5.5 * sigma(kRows));
}

}  // namespace
}  // namespace heed::test
