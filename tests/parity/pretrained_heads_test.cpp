// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>
#include <heed/masks.h>
#include <heed/pretrained.h>
#include <heed/task_heads.h>
#include <heed/weights.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "fixture.h"
#include "pretrained_models.h"
#include "support/weight_files.h"

namespace heed::test::pretrained {
namespace {

/// A model that pretrained_heads.py wrote.
struct HeadCase {
  std::string name, task;  // "llama-plain-sequence", "sequence"

  /// The name without its variant and task.
  std::string family() const { return name.substr(0, name.rfind('-', name.rfind('-') - 1)); }
  std::string folder() const { return folder_of("heads/" + name); }
  Fixture expected() const { return Fixture(folder() + "/expected.pt"); }
};

std::vector<HeadCase> head_cases() {
  std::vector<HeadCase> all;
  for (const auto& row : read_rows(folder_of("heads/heads.txt"))) {
    all.push_back({row.at(0), row.at(1)});
  }
  return all;
}

/// pretrained_heads.py says what is in the files.
class PretrainedHeads : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(folder_of("heads/heads.txt"))) {
      GTEST_SKIP() << read_bytes(folder_of("skipped")) << why_no_fixtures();
    }
  }
};

/// visit(model) with the model of a folder.
template <typename Visit>
void load_head(const HeadCase& c, const std::string& folder, const Visit& visit) {
  auto options = PretrainedOptions().dtype(at::kFloat);
  if (c.task == "sequence") {
    visit(load_pretrained<SequenceClassifier>(folder, options));
  } else if (c.task == "token") {
    visit(load_pretrained<TokenClassifier>(folder, options));
  } else if (c.task == "masked") {
    visit(load_pretrained<MaskedLanguageModel>(folder, options));
  } else {
    // A file of GPT-2 has these names with its head, too.
    if (c.family() == "gpt2") options.head(false);
    visit(load_pretrained(folder, options));
  }
}

/// The scores, 0 behind the ends of sequences where each token has some.
template <typename Model>
at::Tensor scores_of_head(Model& model, const Fixture& expected, const TransformerInputs& inputs) {
  const auto &tokens = expected["tokens"], &lengths = expected["lengths"];
  at::Tensor scores;
  if constexpr (std::is_same_v<Model, Decoder>) {
    scores = model->forward(tokens, inputs);
  } else {
    scores = model->forward(tokens, inputs, expected.find("types"));
  }
  if (scores.dim() == 2) return scores;
  const auto real = at::arange(tokens.size(1)).unsqueeze(0) < lengths.unsqueeze(1);
  return scores * real.unsqueeze(2);
}

template <typename Model>
at::Tensor scores_of_head(Model& model, const Fixture& expected) {
  return scores_of_head(model, expected,
                        padding_mask(expected["lengths"], expected["tokens"].size(1)));
}

TEST_F(PretrainedHeads, AreOfTheseFamilies) {
  std::map<std::string, std::set<std::string>> families;
  for (const auto& c : head_cases()) families[c.task].insert(c.family());
  const std::set<std::string> encoders{"bert",       "roberta",   "distilbert",
                                       "modernbert", "camembert", "xlm-roberta"};
  const std::set<std::string> decoders{"gemma", "gemma2",  "gemma3_text", "gpt2",    "gpt_neox",
                                       "llama", "olmo2",   "phi3",        "mistral", "qwen2",
                                       "qwen3", "smollm3", "stablelm"};
  auto both = decoders;
  both.insert(encoders.begin(), encoders.end());
  EXPECT_EQ(families["sequence"], both);
  EXPECT_EQ(families["masked"], encoders);
  EXPECT_EQ(families["states"], decoders);
  both.erase("gemma3_text");
  both.erase("olmo2");
  EXPECT_EQ(families["token"], both);
}

TEST_F(PretrainedHeads, ComputeTransformersScores) {
  const at::NoGradGuard no_grad;
  for (const auto& c : head_cases()) {
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    load_head(c, c.folder(), [&](auto model) {
      EXPECT_FALSE(model->is_training());
      EXPECT_LE(difference(scores_of_head(model, expected), expected["scores"]), kScores);
      const auto& lengths = expected["lengths"];
      const auto inputs = TransformerInputs().query_lengths(lengths).key_lengths(lengths);
      EXPECT_LE(difference(scores_of_head(model, expected, inputs), expected["scores"]), kScores);
    });
  }
}

/// save_pretrained also writes layers that are tied to others, under their second names.
void erase_tied(NamedTensors& actual, const Fixture& expected) {
  for (const auto* name :
       {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "lm_head.decoder.weight",
        "lm_head.decoder.bias", "vocab_projector.weight", "decoder.weight"}) {
    if (!expected.find(std::string("gradient.") + name)) actual.erase(name);
  }
}

TEST_F(PretrainedHeads, HaveTransformersGradients) {
  for (const auto& c : head_cases()) {
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    load_head(c, c.folder(), [&](auto model) {
      const auto scores = scores_of_head(model, expected);
      const auto loss = (scores * expected["loss.factors"]).square().mean();
      EXPECT_LE(difference(loss.detach(), expected["loss"]), kScores);
      loss.backward();
      auto actual = saved_gradients(model, c.folder() + "/gradients", c.folder());
      erase_tied(actual, expected);
      EXPECT_LE(check_gradients(actual, expected), kGradients);
    });
  }
}

TEST_F(PretrainedHeads, TransformersReadsWhatIsSaved) {
  const at::NoGradGuard no_grad;
  for (const auto& c : head_cases()) {
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    const auto saved = c.folder() + "/saved";
    load_head(c, c.folder(), [&](const auto& model) { save_pretrained(model, saved, c.folder()); });
    load_head(c, saved, [&](auto again) {
      EXPECT_LE(difference(scores_of_head(again, expected), expected["scores"]), kScores);
    });
  }
  expect_python_reads(HEED_PRETRAINED_HEADS, folder_of("heads"));
}

}  // namespace
}  // namespace heed::test::pretrained
