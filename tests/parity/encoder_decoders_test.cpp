// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <heed/encoder_decoder.h>
#include <heed/masks.h>
#include <heed/pretrained.h>
#include <heed/weights.h>

#include <filesystem>
#include <string>
#include <vector>

#include "fixture.h"
#include "pretrained_models.h"
#include "support/expect.h"
#include "support/weight_files.h"

namespace heed::test::pretrained {
namespace {

/// encoder_decoders.py says what is in the files.
class PretrainedPairs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(folder_of("encoder_decoders/cases.txt"))) {
      GTEST_SKIP() << read_bytes(folder_of("skipped")) << why_no_fixtures();
    }
  }
};

EncoderDecoder load_pair(const std::string& folder, at::ScalarType dtype = at::kFloat) {
  return load_pretrained<EncoderDecoder>(folder, PretrainedOptions().dtype(dtype));
}

at::Tensor scores_of_pair(EncoderDecoder& model, const Fixture& expected) {
  const auto& source = expected["source"];
  const auto dtype = model->parameters().front().scalar_type();
  return model->forward(source.is_floating_point() ? source.to(dtype) : source, expected["target"]);
}

TEST_F(PretrainedPairs, ComputeTransformersScores) {
  const at::NoGradGuard no_grad;
  for (const auto& c : pair_cases()) {
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    auto model = load_pair(c.folder());
    EXPECT_FALSE(model->is_training());
    EXPECT_LE(difference(scores_of_pair(model, expected), expected["scores"]), kScores);
    const auto batch = expected.find("batch.source");
    if (!batch) continue;
    const auto mask = padding_mask(expected["batch.lengths"], batch->size(1));
    const auto scores = model->forward(*batch, expected["batch.target"], mask);
    EXPECT_LE(difference(scores, expected["batch.scores"]), kScores);
  }
}

TEST_F(PretrainedPairs, HaveTransformersGradients) {
  for (const auto& c : pair_cases()) {
    SCOPED_TRACE(c.name);
    auto model = load(c.kind, c.folder(), PretrainedOptions().dtype(at::kFloat));
    EXPECT_LE(check_gradients(gradients(model, c), c.expected()), kGradients);
  }
}

/// The rules of transformers' `generate`, of which -1 is none.
struct Rules {
  explicit Rules(const at::Tensor& rules)
      : start(rules[0].item<int64_t>()),
        second(rules[1].item<int64_t>()),
        last(rules[2].item<int64_t>()),
        end(rules[3].item<int64_t>()),
        padding(rules[4].item<int64_t>()) {}

  int64_t start, second, last, end, padding;
};

/// The tokens that the model prefers, [B, 1 + count], step by step with caches.
at::Tensor greedy_text(EncoderDecoder& model, const at::Tensor& source, const Rules& rules,
                       int64_t count) {
  const auto batch = source.size(0);
  const auto memory = model->encode(source);
  const auto inputs = TransformerInputs().projected_memory(model->project_memory(memory));
  auto caches = model->make_caches(batch, 1 + count);
  auto tokens = at::full({batch, 1}, rules.start, at::kLong);
  auto text = tokens, done = at::zeros_like(tokens).to(at::kBool);
  for (int64_t i = 0; i < count; ++i) {
    tokens = model->forward_cached(tokens, caches, {}, inputs).argmax(-1);
    if (i == 0 && rules.second >= 0) tokens.fill_(rules.second);
    if (i == count - 1 && rules.last >= 0) tokens.fill_(rules.last);
    tokens = at::where(done, at::full_like(tokens, rules.padding), tokens);
    done = done.logical_or(tokens.eq(rules.end));
    text = at::cat({text, tokens}, 1);
  }
  return text;
}

TEST_F(PretrainedPairs, WriteTransformersText) {
  const at::NoGradGuard no_grad;
  for (const auto& c : pair_cases()) {
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    auto model = load_pair(c.folder());
    const auto& wanted = expected["generated"];
    const auto text =
        greedy_text(model, expected["source"], Rules(expected["rules"]), wanted.size(1) - 1);
    EXPECT_TRUE(text.equal(wanted)) << text << wanted;
  }
}

TEST_F(PretrainedPairs, RoundLikeTransformersInBfloat16) {
  const at::NoGradGuard no_grad;
  for (const auto& c : pair_cases()) {
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    const auto error = [&](const at::Tensor& scores) {
      const auto apart = scores.to(at::kDouble) - expected["scores"];
      return apart.square().mean().sqrt().item<double>();
    };
    auto model = load_pair(c.folder(), at::kBFloat16);
    const auto scores = scores_of_pair(model, expected);
    EXPECT_EQ(scores.scalar_type(), at::kBFloat16);
    EXPECT_LE(error(scores), 1.25 * error(expected["bfloat16.scores"]));
  }
}

TEST_F(PretrainedPairs, ObeyEveryFieldOfTheirConfigurationOrRefuseIt) {
  const at::NoGradGuard no_grad;
  for (const auto& c : pair_cases()) {
    const auto expected = c.expected();
    const auto mutations = c.folder() + "/mutations/";
    const Fixture changed(mutations + "mutations.pt");
    for (const auto& row : read_rows(mutations + "mutations.txt")) {
      const auto &number = row.at(0), &outcome = row.at(1), &field = row.at(2);
      SCOPED_TRACE(c.name + " " + number + ", " + outcome + ": " + row.at(3));
      const auto folder = mutations + number;
      if (outcome == "refused" || outcome == "misfit") {
        const auto error = value_error([&] { load_pair(folder); });
        EXPECT_EQ(error.rfind("load_pretrained: " + folder + "/config.json", 0), 0U) << error;
        const bool names_it =
            error.find(field) != std::string::npos ||
            (outcome == "misfit" && error.find("must describe the tensors") != std::string::npos) ||
            error.find("must be a multiple of") != std::string::npos;
        EXPECT_TRUE(names_it) << error;
        continue;
      }
      try {
        auto model = load_pair(folder);
        const auto& scores = outcome == "changes" ? changed[number] : expected["scores"];
        EXPECT_LE(difference(scores_of_pair(model, expected), scores), kScores);
      } catch (const c10::Error& error) {
        ADD_FAILURE() << error.what_without_backtrace();
      }
    }
  }
}

/// The tensors of a BART without its head: no bias of the scores, and no "model." before names.
void write_without_head(const std::string& from, const std::string& to) {
  const std::string prefix = "model.";
  NamedTensors bare;
  for (const auto& [name, tensor] : read_weights(from + "/model.safetensors")) {
    if (name.rfind(prefix, 0) == 0) bare[name.substr(prefix.size())] = tensor;
  }
  std::filesystem::create_directories(to);
  save_weights(bare, to + "/model.safetensors");
  std::filesystem::copy_file(from + "/config.json", to + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
}

TEST_F(PretrainedPairs, TakeFilesWithoutAHead) {
  const at::NoGradGuard no_grad;
  for (const auto& c : pair_cases()) {
    if (c.family() != "bart" && c.family() != "marian") continue;
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    const auto bias = *read_weights(c.folder() + "/model.safetensors").find("final_logits_bias");
    const auto bare = c.folder() + "/bare", saved = bare + "/saved";
    write_without_head(c.folder(), bare);
    auto model = load_pair(bare);
    EXPECT_FALSE(model->decoder->score_bias.defined());
    const auto scores = expected["scores"] - bias.second;
    EXPECT_LE(difference(scores_of_pair(model, expected), scores), kScores);
    save_pretrained(model, saved, bare);
    auto again = load_pair(saved);
    EXPECT_TRUE(scores_of_pair(again, expected).equal(scores_of_pair(model, expected)));
    const auto names = read_weights(saved + "/model.safetensors");
    EXPECT_EQ(names.count("final_logits_bias"), 0U);
    EXPECT_EQ(names.count("model.decoder.layers.0.fc1.weight"), 1U);
    const PretrainedOptions packing = PretrainedOptions().weights(PackFormat::float32);
    auto packed = load_pretrained<EncoderDecoder>(bare, packing);
    const auto in_format = bare + "/packed";
    save_pretrained(packed, in_format, bare);
    auto unpacked = load_pretrained<EncoderDecoder>(in_format);
    EXPECT_LE(difference(scores_of_pair(unpacked, expected), scores), kScores);
  }
}

TEST_F(PretrainedPairs, TransformersReadsWhatIsSaved) {
  const at::NoGradGuard no_grad;
  for (const auto& c : pair_cases()) {
    SCOPED_TRACE(c.name);
    const auto saved = c.folder() + "/saved";
    save_pretrained(load_pair(c.folder()), saved, c.folder());
    auto again = load_pair(saved);
    const auto expected = c.expected();
    EXPECT_LE(difference(scores_of_pair(again, expected), expected["scores"]), kScores);
  }
  expect_python_reads(HEED_ENCODER_DECODERS, folder_of("encoder_decoders"));
}

}  // namespace
}  // namespace heed::test::pretrained
