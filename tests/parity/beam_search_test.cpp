// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/beam_search.h>
#include <heed/encoder_decoder.h>
#include <heed/masks.h>
#include <heed/pretrained.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fixture.h"
#include "support/expect.h"
#include "support/weight_files.h"

namespace heed::test::of_beam_search {
namespace {

/// beam_search.py says what is in the files.
class BeamSearchBesidePython : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(fixture_path("beam_search/gpt2.pt"))) {
      GTEST_SKIP() << read_bytes(fixture_path("beam_search/skipped")) << why_no_fixtures();
    }
  }
};

BeamSearchOptions options_of(const Fixture& fixture, const std::string& name) {
  BeamSearchOptions options(fixture.number(name + ".num_beams"),
                            fixture.number(name + ".max_new_tokens"));
  options.num_return_sequences(fixture.number(name + ".num_return_sequences"))
      .early_stopping(static_cast<EarlyStopping>(fixture.number(name + ".stopping")))
      .penalties(fixture.penalties(name));
  if (const auto found = fixture.find(name + ".length_penalty")) {
    options.length_penalty(found->item<double>());
  }
  if (const auto found = fixture.find(name + ".forced_bos_token_id")) {
    options.first_token(found->item<int64_t>());
  }
  if (const auto found = fixture.find(name + ".forced_eos_token_id")) {
    options.last_token(found->item<int64_t>());
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

/// Searches for the texts of a case.
std::vector<std::vector<BeamHypothesis>> found_by(Decoder& model, const Fixture& fixture,
                                                  const std::string& name) {
  return beam_search(model, prompts_of(fixture, name), options_of(fixture, name));
}

std::vector<std::vector<BeamHypothesis>> found_by(EncoderDecoder& model, const Fixture& fixture,
                                                  const std::string& name) {
  const auto device = model->decoder->token_embedding->weight.device();
  const auto source = fixture[name + ".source"];
  EncoderDecoderInputs inputs;
  if (const auto lengths = fixture.find(name + ".source_lengths")) {
    inputs.source_mask(padding_mask(lengths->to(device), source.size(1)));
  }
  return beam_search(model, source.to(device), prompts_of(fixture, name), options_of(fixture, name),
                     inputs);
}

template <typename Model>
void expect_texts_of_python(Model& model, const Fixture& fixture, const std::string& name) {
  const auto found = found_by(model, fixture, name);
  const auto ends = options_of(fixture, name).end_tokens();
  const auto sequences = fixture[name + ".sequences"], scores = fixture[name + ".scores"];
  ASSERT_EQ(static_cast<int64_t>(found.size()), sequences.size(0)) << name;
  for (size_t n = 0; n < found.size(); ++n) {
    ASSERT_EQ(static_cast<int64_t>(found[n].size()), sequences.size(1)) << name;
    for (size_t i = 0; i < found[n].size(); ++i) {
      const auto row = static_cast<int64_t>(n), column = static_cast<int64_t>(i);
      auto wanted = numbers(sequences[row][column]);
      // Behind the end of a text there is padding.
      const auto end = std::find_first_of(wanted.begin(), wanted.end(), ends.begin(), ends.end());
      if (end != wanted.end()) wanted.erase(end + 1, wanted.end());
      EXPECT_EQ(found[n][i].tokens, wanted) << name << ", " << n << ", " << i;
      // Sums of up to 20 float32 log-probabilities; up to 12 times these with length_penalty -1.
      const auto expected = scores[row][column].item<double>();
      EXPECT_NEAR(found[n][i].score, expected, 1e-4 * std::max(1.0, std::abs(expected)))
          << name << ", " << n << ", " << i;
    }
  }
}

template <typename Model>
void expect_all_texts_of_python(const std::string& folder, size_t cases) {
  SCOPED_TRACE(folder);
  const Fixture fixture(fixture_path("beam_search/" + folder + ".pt"));
  const auto names = cases_of(fixture);
  EXPECT_GE(names.size(), cases);
  for (const auto device : devices()) {
    auto model = load_pretrained<Model>(fixture_path("beam_search/" + folder));
    model->to(device);
    for (const auto& each : names) expect_texts_of_python(model, fixture, each);
  }
}

TEST_F(BeamSearchBesidePython, FindsTransformersTexts) {
  for (const std::string name : {"llama", "gpt2"}) expect_all_texts_of_python<Decoder>(name, 10);
}

TEST_F(BeamSearchBesidePython, FindsTransformersTargets) {
  std::ifstream pairs(fixture_path("beam_search/pairs.txt"));
  size_t count = 0;
  for (std::string name; std::getline(pairs, name); ++count) {
    expect_all_texts_of_python<EncoderDecoder>(name, 5);
  }
  EXPECT_GE(count, 5U);
}

}  // namespace
}  // namespace heed::test::of_beam_search
