#include <gtest/gtest.h>
#include <heed/beam_search.h>
#include <heed/pretrained.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "fixture.h"
#include "support/expect.h"
#include "support/weight_files.h"

namespace heed::test::of_beam_search {
namespace {

constexpr int64_t kPadding = 31;

/// beam_search.py says what is in the files.
class BeamSearchBesidePython : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(fixture_path("beam_search/gpt2.pt"))) {
      GTEST_SKIP() << read_bytes(fixture_path("beam_search/skipped")) << why_no_fixtures();
    }
  }
};

std::vector<int64_t> numbers(const at::Tensor& tokens) {
  const auto own = tokens.contiguous();
  return {own.data_ptr<int64_t>(), own.data_ptr<int64_t>() + own.numel()};
}

SamplingOptions penalties_of(const Fixture& fixture, const std::string& name) {
  SamplingOptions options;
  if (const auto found = fixture.find(name + ".repetition_penalty")) {
    options.repetition_penalty(found->item<double>());
  }
  if (const auto found = fixture.find(name + ".no_repeat_ngram_size")) {
    options.no_repeat_ngram_size(found->item<int64_t>());
  }
  if (const auto found = fixture.find(name + ".bias_tokens")) {
    const auto tokens = numbers(*found);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto number = fixture[name + ".bias_numbers"][static_cast<int64_t>(i)];
      options.logit_bias()[tokens[i]] = number.item<double>();
    }
  }
  return options;
}

BeamSearchOptions options_of(const Fixture& fixture, const std::string& name) {
  BeamSearchOptions options(fixture.number(name + ".num_beams"),
                            fixture.number(name + ".max_new_tokens"));
  options.num_return_sequences(fixture.number(name + ".num_return_sequences"))
      .early_stopping(static_cast<EarlyStopping>(fixture.number(name + ".stopping")))
      .penalties(penalties_of(fixture, name));
  if (const auto found = fixture.find(name + ".length_penalty")) {
    options.length_penalty(found->item<double>());
  }
  if (const auto found = fixture.find(name + ".min_new_tokens")) {
    options.min_new_tokens(found->item<int64_t>());
  }
  if (const auto found = fixture.find(name + ".end_tokens")) options.end_tokens(numbers(*found));
  return options;
}

std::vector<std::vector<int64_t>> prompts_of(const Fixture& fixture, const std::string& name) {
  std::vector<std::vector<int64_t>> prompts;
  const auto& padded = fixture[name + ".prompts"];
  const auto lengths = numbers(fixture[name + ".lengths"]);
  for (size_t n = 0; n < lengths.size(); ++n) {
    const auto row = padded[static_cast<int64_t>(n)];
    prompts.push_back(numbers(row.slice(0, row.size(0) - lengths[n])));
  }
  return prompts;
}

/// The names of the cases.
std::vector<std::string> cases_of(const Fixture& fixture) {
  const std::string end = ".prompts";
  std::vector<std::string> names;
  for (const auto& [name, tensor] : fixture.all()) {
    const auto found = name.rfind(end);
    if (found != std::string::npos && found + end.size() == name.size()) {
      names.push_back(name.substr(0, found));
    }
  }
  return names;
}

void expect_texts_of_python(const Decoder& model, const Fixture& fixture, const std::string& name) {
  const auto found = beam_search(model, prompts_of(fixture, name), options_of(fixture, name));
  const auto sequences = fixture[name + ".sequences"], scores = fixture[name + ".scores"];
  ASSERT_EQ(static_cast<int64_t>(found.size()), sequences.size(0)) << name;
  for (size_t n = 0; n < found.size(); ++n) {
    ASSERT_EQ(static_cast<int64_t>(found[n].size()), sequences.size(1)) << name;
    for (size_t i = 0; i < found[n].size(); ++i) {
      const auto row = static_cast<int64_t>(n), column = static_cast<int64_t>(i);
      auto tokens = found[n][i].tokens;
      ASSERT_LE(static_cast<int64_t>(tokens.size()), sequences.size(2)) << name;
      tokens.resize(static_cast<size_t>(sequences.size(2)), kPadding);
      EXPECT_EQ(tokens, numbers(sequences[row][column])) << name << ", " << n << ", " << i;
      // Sums of up to 20 float32 log-probabilities; up to 12 times these with length_penalty -1.
      const auto expected = scores[row][column].item<double>();
      EXPECT_NEAR(found[n][i].score, expected, 1e-4 * std::max(1.0, std::abs(expected)))
          << name << ", " << n << ", " << i;
    }
  }
}

TEST_F(BeamSearchBesidePython, FindsTransformersTexts) {
  for (const std::string name : {"llama", "gpt2"}) {
    const Fixture fixture(fixture_path("beam_search/" + name + ".pt"));
    const auto names = cases_of(fixture);
    EXPECT_GE(names.size(), 10U);
    for (const auto device : devices()) {
      auto model = load_pretrained(fixture_path("beam_search/" + name));
      model->to(device);
      for (const auto& each : names) expect_texts_of_python(model, fixture, each);
    }
  }
}

}  // namespace
}  // namespace heed::test::of_beam_search
