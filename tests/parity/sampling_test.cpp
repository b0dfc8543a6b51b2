// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <heed/sampling.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "fixture.h"
#include "support/expect.h"
#include "support/seeds.h"
#include "support/weight_files.h"

namespace heed::test::of_sampling {
namespace {

/// sampling.py says what is in the file.
class SamplingBesidePython : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(fixture_path("sampling/generate.pt"))) {
      GTEST_SKIP() << read_bytes(fixture_path("sampling/skipped")) << why_no_fixtures();
    }
  }
};

SamplingOptions options_of(const Fixture& fixture, const std::string& name) {
  auto options = fixture.penalties(name);
  if (const auto found = fixture.find(name + ".min_new_tokens")) {
    options.min_new_tokens(found->item<int64_t>());
  }
  if (const auto found = fixture.find(name + ".end_tokens")) options.end_tokens(numbers(*found));
  return options;
}

at::Generator seeded(int64_t step) {
  return at::make_generator<at::CPUGeneratorImpl>(moved(static_cast<uint64_t>(step)));
}

/// The texts of a case, of which a step sees the beginnings.
class Texts {
 public:
  Texts(const Fixture& fixture, const std::string& name)
      : prompt_(fixture[name + ".prompt"].size(1)), ends_(options_of(fixture, name).end_tokens()) {
    const auto& sequences = fixture[name + ".sequences"];
    for (int64_t row = 0; row < sequences.size(0); ++row) rows_.push_back(numbers(sequences[row]));
  }

  std::vector<TokenHistory> before(int64_t step) const {
    std::vector<TokenHistory> histories;
    for (const auto& row : rows_) {
      histories.push_back({at::ArrayRef<int64_t>(row).slice(0, size_t(prompt_ + step)), step});
    }
    return histories;
  }
  size_t count() const { return rows_.size(); }
  int64_t next(size_t row, int64_t step) const { return rows_[row][size_t(prompt_ + step)]; }
  /// Whether the row has ended before the step: only padding follows.
  bool has_ended(size_t row, int64_t step) const {
    return std::any_of(
        rows_[row].begin() + prompt_, rows_[row].begin() + prompt_ + step,
        [&](int64_t token) { return std::find(ends_.begin(), ends_.end(), token) != ends_.end(); });
  }

 private:
  int64_t prompt_;
  std::vector<int64_t> ends_;
  std::vector<std::vector<int64_t>> rows_;
};

/// The most likely tokens are those of transformers' text. Tokens are drawn as from the scores that
/// transformers' processors return, which shows all of them.
void expect_text_of_python(const Fixture& fixture, const std::string& name, at::Device device) {
  const Texts texts(fixture, name);
  const auto options = options_of(fixture, name);
  const auto greedy = SamplingOptions(options).temperature(0);
  const auto scores = fixture[name + ".scores"].to(device);
  const auto processed = fixture[name + ".output"].to(device);
  for (int64_t step = 0; step < scores.size(0); ++step) {
    const auto histories = texts.before(step);
    const auto likeliest = numbers(sample(scores[step], greedy, {}, histories));
    for (size_t row = 0; row < texts.count(); ++row) {
      if (texts.has_ended(row, step)) continue;
      EXPECT_EQ(likeliest[row], texts.next(row, step)) << "row " << row << ", step " << step;
    }
    const auto drawn = [&](const at::Tensor& from, const SamplingOptions& by) {
      auto generator = seeded(step);
      std::vector<int64_t> tokens;
      for (int draw = 0; draw < 50; ++draw) {
        const auto more = numbers(sample(from, by, generator, histories));
        tokens.insert(tokens.end(), more.begin(), more.end());
      }
      return tokens;
    };
    EXPECT_EQ(drawn(scores[step], SamplingOptions(options).temperature(8)),
              drawn(processed[step], SamplingOptions().temperature(8)))
        << "step " << step;
  }
}

TEST_F(SamplingBesidePython, ChangesScoresInTheOrderOfTransformers) {
  const Fixture fixture(fixture_path("sampling/generate.pt"));
  ASSERT_EQ(fixture.cases().size(), 8U);
  for (const auto& name : fixture.cases()) {
    for (const auto device : devices()) {
      SCOPED_TRACE(name);
      expect_text_of_python(fixture, name, device);
    }
  }
}

}  // namespace
}  // namespace heed::test::of_sampling
