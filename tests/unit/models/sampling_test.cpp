// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <heed/sampling.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/seeds.h"

namespace heed::test::of_sampling {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

at::Generator seeded(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(moved(seed));
}

std::vector<int64_t> numbers(const at::Tensor& tokens) {
  const auto on_host = tokens.cpu();
  return {on_host.data_ptr<int64_t>(), on_host.data_ptr<int64_t>() + on_host.numel()};
}

/// The probabilities of the options, in plain loops.
std::vector<double> probabilities(const std::vector<double>& scores,
                                  const SamplingOptions& options) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  std::vector<double> kept;  // in descending order
  for (const auto v : order) kept.push_back(std::exp(scores[v] / options.temperature()));
  const auto sum = [&] { return std::accumulate(kept.begin(), kept.end(), 0.0); };
  const auto keep = [&](size_t count) {  // and those that are equal to the last
    while (count < kept.size() && kept[count] == kept[count - 1]) ++count;
    kept.resize(std::min(kept.size(), count));
  };
  if (options.top_k() > 0) keep(size_t(options.top_k()));
  size_t count = 0;
  for (double before = 0; count < kept.size() && (count == 0 || before < options.top_p());) {
    before += kept[count++] / sum();
  }
  keep(count);
  while (kept.back() < options.min_p() * kept.front()) kept.pop_back();
  std::vector<double> found(scores.size());
  for (size_t rank = 0; rank < kept.size(); ++rank) found[order[rank]] = kept[rank] / sum();
  return found;
}

std::vector<SamplingOptions> kinds() {
  return {SamplingOptions(),
          SamplingOptions().temperature(0.5),
          SamplingOptions().temperature(3),
          SamplingOptions().top_k(3),
          SamplingOptions().top_p(0.8),
          SamplingOptions().min_p(0.3),
          SamplingOptions().top_k(4).top_p(0.7),
          SamplingOptions().temperature(2).top_k(6).top_p(0.9).min_p(0.4)};
}

void expect_probabilities(const std::vector<double>& scores, const SamplingOptions& options,
                          const std::vector<double>& expected) {
  constexpr int64_t kDraws = 20'000;
  const auto count = static_cast<int64_t>(scores.size());
  for (const auto device : devices()) {
    const auto rows = at::tensor(scores, at::kDouble).to(device).expand({kDraws, count});
    auto found = std::vector<double>(scores.size());
    for (const auto token : numbers(sample(rows, options, seeded(3)))) {
      found.at(static_cast<size_t>(token)) += 1.0;
    }
    for (size_t v = 0; v < scores.size(); ++v) {
      // Five standard deviations: one in two million such differences is larger.
      const auto deviation = std::sqrt(expected[v] * (1 - expected[v]) / kDraws);
      EXPECT_NEAR(found[v] / kDraws, expected[v], 5 * deviation)
          << "token " << v << ", temperature " << options.temperature() << ", top_k "
          << options.top_k() << ", top_p " << options.top_p() << ", min_p " << options.min_p();
    }
  }
}

TEST(Sample, DrawsFromTheProbabilities) {
  const std::vector<double> scores = {0.3, -1.25, 1.5, 0.75, -2.5, 1.0, -0.5};
  for (const auto& options : kinds()) {
    expect_probabilities(scores, options, probabilities(scores, options));
  }
}

/// The set of which top_p is a share holds all tokens that top_k keeps, however many are equal to
/// the last.
TEST(Sample, CountsEqualScoresAtTheBorderOfTopK) {
  const auto log = [](std::vector<double> numbers) {
    for (auto& number : numbers) number = std::log(number);
    return numbers;
  };
  const auto options = SamplingOptions().top_k(2).top_p(0.5);
  expect_probabilities(log({1.0, 0.4, 0.4, 0.4}), options,
                       {1.0 / 2.2, 0.4 / 2.2, 0.4 / 2.2, 0.4 / 2.2});
  // 1 of 1.8 reaches a half.
  expect_probabilities(log({0.4, 1.0, 0.4, 0.1}), options, {0, 1, 0, 0});
  const auto scores = log({0.4, 0.4, 1.0, 0.4, 0.1, 0.4, 0.9});
  for (const int64_t top_k : {1, 2, 3, 4, 6, 7}) {
    for (const double top_p : {0.25, 0.5, 0.6, 0.8, 0.99}) {
      const auto each = SamplingOptions().top_k(top_k).top_p(top_p);
      expect_probabilities(scores, each, probabilities(scores, each));
    }
  }
}

TEST(Sample, TakesTheFirstOfTheMostLikelyAtTemperatureZero) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto device : devices()) {
      const auto scores =
          at::tensor({1.0, 3.0, 3.0, -kInfinity, 2.0, 2.0}).view({2, 3}).to(device, dtype);
      const auto tokens = sample(scores, SamplingOptions().temperature(0).top_k(2));
      EXPECT_EQ(tokens.scalar_type(), at::kLong);
      EXPECT_EQ(tokens.device(), scores.device());
      EXPECT_EQ(numbers(tokens), std::vector<int64_t>({1, 1}));
    }
  }
}

TEST(Sample, FindsTheMostLikelyOfManyTokens) {
  torch::manual_seed(moved(77));
  constexpr int64_t kTokens = 3001;
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    auto scores = at::rand({5, kTokens}).to(dtype);
    const std::vector<int64_t> places = {0, 1, 1700, kTokens - 2, kTokens - 1};
    for (size_t row = 0; row < places.size(); ++row) {
      // An equal score follows, and one of another sign and size.
      scores[static_cast<int64_t>(row)].slice(0, places[row]).fill_(2);
      scores[static_cast<int64_t>(row)][(places[row] + kTokens / 2) % kTokens] = -3;
    }
    const auto greedy = SamplingOptions().temperature(0);
    auto expected = places;
    expected[0] = 0;
    EXPECT_EQ(numbers(sample(scores, greedy)), expected) << dtype;
    EXPECT_EQ(numbers(sample(scores.t().contiguous().t(), greedy)), expected) << dtype;
    const auto zeros = at::cat({at::full({1, 400}, -0.0), at::zeros({1, 400})}, 1).to(dtype);
    EXPECT_EQ(numbers(sample(zeros, greedy)), std::vector<int64_t>({0})) << dtype;
    scores[2][40] = kNaN;
    EXPECT_ERROR("sample: scores row 2 maximum (nan) must be finite; scores [5, 3001]",
                 sample(scores, greedy));
  }
}

TEST(Sample, KeepsEqualScoresTogether) {
  const auto rows = at::tensor({2.0, 1.0, 2.0, 2.0}).expand({1000, 4});
  for (const auto& options : {SamplingOptions().top_k(1), SamplingOptions().top_k(2),
                              SamplingOptions().top_p(0.1), SamplingOptions().top_p(0),
                              SamplingOptions().min_p(1), SamplingOptions().temperature(1e-3)}) {
    std::vector<int64_t> counts(4);
    for (const auto token : numbers(sample(rows, options, seeded(1)))) {
      ++counts.at(static_cast<size_t>(token));
    }
    EXPECT_EQ(counts[1], 0);
    // Five standard deviations.
    for (const size_t v : {0, 2, 3}) EXPECT_NEAR(counts[v], 1000.0 / 3, 75);
  }
}

TEST(Sample, LeavesNothingOutByLimitsThatAreNone) {
  torch::manual_seed(moved(2));
  const auto scores = at::randn({500, 40});
  const auto expected = numbers(sample(scores, SamplingOptions(), seeded(5)));
  for (const auto& options :
       {SamplingOptions().top_k(40), SamplingOptions().top_k(int64_t{1} << 62),
        SamplingOptions().top_p(1).min_p(0), SamplingOptions().top_p(1 - 1e-12)}) {
    EXPECT_EQ(numbers(sample(scores, options, seeded(5))), expected);
  }
}

/// Each row has options and a generator of its own, and equal scores to be cut between.
TEST(Sample, DependsOnTheRowsOwnGeneratorAndOptionsAlone) {
  torch::manual_seed(moved(2));
  auto options = kinds();
  options.push_back(SamplingOptions().temperature(0));
  const auto count = options.size(), steps = size_t{50};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto scores =
        (at::randn({50, static_cast<int64_t>(count), 30}) * 4).round().div(4).to(dtype);
    std::vector<at::Generator> together, alone;
    for (size_t n = 0; n < count; ++n) {
      together.push_back(seeded(n));
      alone.push_back(seeded(n));
    }
    for (size_t step = 0; step < steps; ++step) {
      const auto rows = scores[static_cast<int64_t>(step)];
      const auto tokens = numbers(sample(rows, options, together));
      for (size_t n = 0; n < count; ++n) {
        const auto own = rows.narrow(0, static_cast<int64_t>(n), 1);
        EXPECT_EQ(numbers(sample(own, options[n], alone[n])), std::vector<int64_t>({tokens[n]}))
            << "row " << n << ", step " << step;
      }
    }
  }
}

TEST(Sample, TakesLibTorchsGeneratorUnlessOneIsGiven) {
  const auto scores = at::zeros({20, 1000});
  torch::manual_seed(moved(4));
  const auto first = numbers(sample(scores)), second = numbers(sample(scores));
  EXPECT_NE(first, second);
  torch::manual_seed(moved(4));
  EXPECT_EQ(numbers(sample(scores)), first);
  auto generator = seeded(4);
  EXPECT_EQ(numbers(sample(scores, SamplingOptions(), generator)), first);
  EXPECT_EQ(numbers(sample(scores, SamplingOptions(), generator)), second);
}

TEST(Sample, TakesAnyTemperatureAndAnyFiniteScore) {
  constexpr auto kLargest = std::numeric_limits<float>::max();
  const auto scores = at::tensor({-kLargest, 3.0F, kLargest, kLargest / 2}).unsqueeze(0);
  const auto close = at::tensor({1.0, 3.0, 2.0}).unsqueeze(0);
  for (const double temperature : {1e-3, 1e-40, 5e-324}) {
    const auto options = SamplingOptions().temperature(temperature);
    EXPECT_EQ(numbers(sample(scores, options)), std::vector<int64_t>({2})) << temperature;
    EXPECT_EQ(numbers(sample(close, options)), std::vector<int64_t>({1})) << temperature;
  }
  EXPECT_LT(numbers(sample(close, SamplingOptions().temperature(1e308)))[0], 3);
}

TEST(Sample, NeverTakesWhatHasNoProbability) {
  const auto rows = at::tensor({-kInfinity, 0.0, -kInfinity, -1.0, -kInfinity}).expand({1000, 5});
  for (const auto& options :
       {SamplingOptions(), SamplingOptions().temperature(1e300), SamplingOptions().top_k(5)}) {
    for (const auto token : numbers(sample(rows, options))) EXPECT_TRUE(token == 1 || token == 3);
  }
}

TEST(Sample, TakesNoRowsAndStridesAndGradients) {
  EXPECT_EQ(sample(at::ones({0, 5})).sizes(), at::IntArrayRef({0}));
  const auto scores = at::randn({6, 4});
  EXPECT_EQ(numbers(sample(scores.t(), SamplingOptions().top_p(0.9), seeded(1))),
            numbers(sample(scores.t().contiguous(), SamplingOptions().top_p(0.9), seeded(1))));
  EXPECT_EQ(sample(at::randn({2, 3}).requires_grad_()).numel(), 2);
}

TEST(Sample, RefusesWhatIsWrong) {
  const auto scores = at::ones({2, 3});
  const auto error = [&](const SamplingOptions& options) {
    return value_error([&] { sample(scores, options); });
  };
  EXPECT_EQ(error(SamplingOptions().temperature(-1)),
            "sample: temperature (-1) must be finite and at least 0");
  EXPECT_EQ(error(SamplingOptions().temperature(kInfinity)),
            "sample: temperature (inf) must be finite and at least 0");
  EXPECT_EQ(error(SamplingOptions().top_k(-2)), "sample: top_k (-2) must be at least 0");
  EXPECT_EQ(error(SamplingOptions().top_p(1.5)), "sample: top_p (1.5) must be in [0, 1]");
  EXPECT_EQ(error(SamplingOptions().min_p(kNaN)), "sample: min_p (nan) must be in [0, 1]");
  EXPECT_ERROR("sample: scores rank (1) must equal 2; scores [3]", sample(scores[0]));
  EXPECT_ERROR("sample: scores dtype (Long) must be Float, Double, BFloat16 or Half",
               sample(scores.to(at::kLong)));
  EXPECT_ERROR("sample: scores dim 1 (0) must be at least 1; scores [2, 0]",
               sample(at::ones({2, 0})));
  const std::vector<SamplingOptions> three(3);
  EXPECT_ERROR("sample: options size (3) must equal 1 or scores dim 0 (2)", sample(scores, three));
  const std::vector<at::Generator> generators = {seeded(1), seeded(2), seeded(3)};
  EXPECT_ERROR("sample: generators size (3) must equal 0, 1 or scores dim 0 (2)",
               sample(scores, SamplingOptions(), generators));
  EXPECT_ERROR("sample: generators must be defined",
               sample(scores, SamplingOptions(), at::Generator()));
}

TEST(Sample, RefusesScoresWithoutALargest) {
  const auto error = [](double first, double second, double temperature) {
    const auto scores = at::tensor({0.0, 1.0, first, second}).view({2, 2});
    return value_error([&] { sample(scores, SamplingOptions().temperature(temperature)); });
  };
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_EQ(error(0, kNaN, temperature),
              "sample: scores row 1 maximum (nan) must be finite; scores [2, 2]");
    EXPECT_EQ(error(kInfinity, 0, temperature),
              "sample: scores row 1 maximum (inf) must be finite; scores [2, 2]");
    EXPECT_EQ(error(-kInfinity, -kInfinity, temperature),
              "sample: scores row 1 maximum (-inf) must be finite; scores [2, 2]");
  }
}

}  // namespace
}  // namespace heed::test::of_sampling
