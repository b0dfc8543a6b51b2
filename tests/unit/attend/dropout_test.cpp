#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cmath>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

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

}  // namespace
}  // namespace heed::test
