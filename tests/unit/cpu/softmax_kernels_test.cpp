// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cpu/capability.h"
#include "cpu/isa/scores.h"
#include "unit/cpu/kernels.h"

namespace heed::test {
namespace {

/// Scores of one row, all of which it sees, as weights.
struct SoftmaxOfRow {
  explicit SoftmaxOfRow(std::vector<float> scores,
                        detail::WeightForm form = detail::WeightForm::numbers)
      : weights(std::move(scores)), row() {
    row.last_key = static_cast<int64_t>(weights.size());
    detail::ScoreFormat format{};
    format.weights = form;
    detail::instruction_set().scores.of_float.softmax(
        {format, &row, 1, 0, row.last_key, weights.data(), row.last_key, nullptr, nullptr, 1},
        largest_of_strip, sum_of_strip, nullptr, 0);
    largest = largest_of_strip[0];
    sum = sum_of_strip[0];
  }

  /// The weights where they are in pairs.
  at::Tensor pairs() {
    return at::from_blob(weights.data(), {row.last_key}, at::kBFloat16).to(at::kFloat);
  }

  std::vector<float> weights;
  detail::QueryRow row;
  float largest, sum;

 private:
  static constexpr float kNone = -std::numeric_limits<float>::infinity();
  float largest_of_strip[detail::kStripRows] = {kNone};
  float sum_of_strip[detail::kStripRows] = {};
};

/// Scores from 0 down to where weights are no longer normal numbers.
std::vector<float> falling_scores() {
  std::vector<float> scores(896);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = -0.0973F * static_cast<float>(i);
  return scores;
}

TEST_P(Kernels, WeightsAreWithinTwoRoundoffs) {
  const auto scores = falling_scores();
  const SoftmaxOfRow row(scores);
  EXPECT_EQ(row.largest, 0);
  double sum = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto exact = std::exp(static_cast<double>(scores[i]));
    ASSERT_NEAR(row.weights[i] / exact, 1, 2 * 0x1p-24) << scores[i];
    sum += exact;
  }
  EXPECT_NEAR(row.sum / sum, 1, 64 * 0x1p-24);
}

TEST_P(Kernels, WeightsOfSpecialScores) {
  constexpr auto kInfinity = std::numeric_limits<float>::infinity();
  constexpr auto kNan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> scores(16, -kInfinity);
  scores[0] = 1e30F;
  scores[1] = -1e30F;
  scores[2] = std::nextafter(1e30F, 0.0F);
  scores[3] = 1e30F;
  SoftmaxOfRow row(scores);
  std::vector<float> expected(16, 0);
  expected[0] = expected[3] = 1;
  EXPECT_EQ(row.weights, expected);
  EXPECT_EQ(row.sum, 2);

  EXPECT_EQ(SoftmaxOfRow(std::vector<float>(16, -kInfinity)).weights, std::vector<float>(16, 0));
  for (const auto bad : {kNan, -kNan, std::nanf("0x1ff"), kInfinity}) {
    scores[5] = bad;
    EXPECT_TRUE(std::isnan(SoftmaxOfRow(scores).weights[5]));
  }
}

/// Also where vectors are odd in number.
TEST_P(Kernels, PairsOfWeightsAreWithinARoundoff) {
  if (!detail::instruction_set().multiplies_bfloat16) return;
  for (const size_t count : {16, 32, 48, 896}) {
    auto scores = falling_scores();
    scores.resize(count);
    SoftmaxOfRow row(scores, detail::WeightForm::pairs);
    const auto weights = row.pairs();
    double sum = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto exact = std::exp(static_cast<double>(scores[i]));
      ASSERT_NEAR(weights[static_cast<int64_t>(i)].item<double>() / exact, 1, 0x1.01p-8) << i;
      sum += exact;
    }
    EXPECT_NEAR(row.sum / sum, 1, 4e-6) << count;
  }
}

/// Whatever the largest score was when the forward pass computed a weight: if it was another, a few
/// of a thousand are at the edge of being rounded otherwise.
TEST_P(Kernels, BackwardPassRoundsTheVeryWeightsOfTheForwardPass) {
  if (!detail::instruction_set().multiplies_bfloat16) return;
  constexpr auto kForm = detail::WeightForm::training_pairs;
  constexpr int64_t kCount = 896;
  for (const float first : {0.0F, 3.3F, -7.1F}) {
    auto scores = falling_scores();
    scores.resize(kCount);
    for (auto& score : scores) score = score / 4 + first;
    SoftmaxOfRow forward(scores, kForm);
    const auto weights = forward.pairs();
    EXPECT_NEAR(forward.sum / weights.sum(at::kDouble).item<double>(), 1, 1e-6);
    for (const float later : {0.0F, 0.1F, 5.3F}) {
      scores[0] = first + later;
      SoftmaxOfRow last(scores, kForm);
      // Three rows, which is odd; gradients of 1 make those of scores the weights.
      std::vector<detail::QueryRow> rows(3, last.row);
      std::vector<float> tile(4 * kCount), gradients(4 * kCount, 1);
      for (size_t r = 0; r < 3; ++r) {
        std::copy(scores.begin(), scores.end(), tile.begin() + static_cast<int64_t>(r) * kCount);
      }
      const std::vector<float> largest(3, last.largest), ones(3, 1), zeros(3, 0);
      detail::ScoreFormat format{};
      format.weights = kForm;
      detail::instruction_set().scores.of_float.softmax_backward(
          {format, rows.data(), 3, 0, kCount, tile.data(), kCount, nullptr, nullptr, 1},
          largest.data(), ones.data(), zeros.data(), gradients.data());

      const auto expected =
          (weights * std::exp2(std::round((forward.largest - last.largest) / std::log(2.0))))
              .slice(0, 1);
      const auto numbers = [&](const std::vector<float>& from, int64_t row) {
        return at::from_blob(const_cast<float*>(from.data()) + row * kCount, {2 * kCount},
                             at::kBFloat16)
            .to(at::kFloat);
      };
      const auto expect_weights = [&](const at::Tensor& found) {
        const auto others = found.ne(expected).sum().item<int64_t>();
        EXPECT_LE(others, forward.largest == last.largest ? 0 : kCount / 100) << first << later;
        EXPECT_TRUE(at::allclose(found, expected, 0x1p-7, 0));
      };
      for (const int64_t row : {0, 1, 2})
        expect_weights(numbers(gradients, row).slice(0, 1, kCount));
      for (const int64_t row : {0, 1, 2, 3}) {  // of weights and of gradients, of two rows each
        const auto pairs = numbers(tile, row).view({kCount, 2}).slice(0, 1);
        expect_weights(pairs.select(1, 0));
        if (row < 2) {
          expect_weights(pairs.select(1, 1));
        } else {
          EXPECT_TRUE(at::equal(pairs.select(1, 1), at::zeros_like(expected)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace heed::test
