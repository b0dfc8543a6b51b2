// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <heed/image_encoder.h>
#include <heed/masks.h>
#include <heed/pretrained.h>
#include <heed/text_encoder.h>
#include <heed/weights.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "fixture.h"
#include "pretrained_models.h"
#include "support/expect.h"
#include "support/weight_files.h"

namespace heed::test::pretrained {
namespace {

/// An encoder of a model that towers.py wrote.
struct TowerCase {
  std::string name;   // "clip-plain"
  std::string tower;  // "text" or "image"
  bool is_first;      // of its folder

  std::string folder() const { return folder_of("towers/" + name); }
  std::string kind() const { return tower + "_encoder"; }
  std::string mutations() const { return folder() + (is_first ? "" : "/" + tower) + "/mutations/"; }
  Fixture expected() const { return Fixture(folder() + "/" + tower + ".pt"); }
};

std::vector<TowerCase> tower_cases() {
  std::vector<TowerCase> all;
  for (const auto& row : read_rows(folder_of("towers/cases.txt"))) {
    std::istringstream towers(row.at(1));
    bool is_first = true;
    for (std::string tower; towers >> tower; is_first = false) {
      all.push_back({row.at(0), tower, is_first});
    }
  }
  return all;
}

/// towers.py says what is in the files.
class Towers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(folder_of("towers/cases.txt"))) {
      GTEST_SKIP() << read_bytes(folder_of("skipped")) << why_no_fixtures();
    }
  }
};

AnyModel load_tower(const TowerCase& c, const std::string& folder,
                    at::ScalarType dtype = at::kFloat) {
  return load(c.kind(), folder, PretrainedOptions().dtype(dtype));
}

at::Tensor inputs_of(const AnyModel& model, const Fixture& expected) {
  const auto& inputs = expected["inputs"];
  const auto dtype = module_of(model).parameters().front().scalar_type();
  return inputs.is_floating_point() ? inputs.to(dtype) : inputs;
}

at::Tensor states_of(AnyModel& model, const Fixture& expected) {
  const auto inputs = inputs_of(model, expected);
  if (auto* images = std::get_if<ImageEncoder>(&model)) return (*images)(inputs);
  const auto &lengths = expected["lengths"], mask = padding_mask(lengths, inputs.size(1));
  const auto real = at::arange(inputs.size(1)) < lengths.unsqueeze(1);
  return std::get<TextEncoder>(model)(inputs, mask) * real.unsqueeze(2);
}

/// One vector for each text or image; the states of images where nothing is pooled.
at::Tensor pooled_of(AnyModel& model, const Fixture& expected) {
  const auto inputs = inputs_of(model, expected);
  if (auto* texts = std::get_if<TextEncoder>(&model)) return (*texts)->forward_pooled(inputs);
  auto& images = std::get<ImageEncoder>(model);
  const bool is_pooled = images->options.class_token() || images->options.attention_pooling();
  return is_pooled ? images->forward_pooled(inputs) : images->forward(inputs);
}

TEST_F(Towers, ComputeTransformersVectors) {
  const at::NoGradGuard no_grad;
  for (const auto& c : tower_cases()) {
    SCOPED_TRACE(c.name + ", " + c.tower);
    const auto expected = c.expected();
    auto model = load_tower(c, c.folder());
    EXPECT_FALSE(module_of(model).is_training());
    EXPECT_LE(difference(pooled_of(model, expected), expected["pooled"]), kScores);
    EXPECT_LE(difference(states_of(model, expected), expected["states"]), kScores);
    const auto masked = expected.find("masked.pooled");
    if (!masked) continue;
    const auto tokens = expected["inputs"];
    const auto mask = padding_mask(expected["lengths"], tokens.size(1));
    const auto pooled = std::get<TextEncoder>(model)->forward_pooled(tokens, mask);
    EXPECT_LE(difference(pooled, *masked), kScores);
  }
}

TEST_F(Towers, HaveTransformersGradients) {
  for (const auto& c : tower_cases()) {
    SCOPED_TRACE(c.name + ", " + c.tower);
    const auto expected = c.expected();
    auto model = load_tower(c, c.folder());
    const auto loss = (pooled_of(model, expected) * expected["loss.factors"]).square().mean();
    EXPECT_LE(difference(loss.detach(), expected["loss"]), kScores);
    loss.backward();
    // save_pretrained knows the names: it writes gradients in the parameters' place.
    const at::NoGradGuard no_grad;
    for (auto& parameter : module_of(model).parameters()) {
      const auto& gradient = parameter.grad();
      parameter.set_data(gradient.defined() ? gradient : at::zeros_like(parameter));
    }
    const auto folder = c.folder() + "/gradients-" + c.tower;
    save(model, folder, c.folder());
    auto actual = read_weights(folder + "/model.safetensors");
    if (c.name == "clip-classifier") {  // which heed leaves out
      EXPECT_EQ(actual.count("classifier.weight"), 0U);
    }
    EXPECT_LE(check_gradients(actual, expected), kGradients);
  }
}

TEST_F(Towers, RoundLikeTransformersInBfloat16) {
  const at::NoGradGuard no_grad;
  double ours = 0.0, theirs = 0.0;
  for (const auto& c : tower_cases()) {
    SCOPED_TRACE(c.name + ", " + c.tower);
    const auto expected = c.expected();
    const auto error = [&](const at::Tensor& pooled) {
      const auto apart = pooled.to(at::kDouble) - expected["pooled"];
      return (apart.square().mean().sqrt() / expected["pooled"].abs().max()).item<double>();
    };
    auto model = load_tower(c, c.folder(), at::kBFloat16);
    const auto pooled = pooled_of(model, expected);
    EXPECT_EQ(pooled.scalar_type(), at::kBFloat16);
    // Both err by the rounding of every layer's output, in other orders; a model has few vectors.
    EXPECT_LE(error(pooled), 2.0 * error(expected["bfloat16.pooled"]));
    ours += error(pooled);
    theirs += error(expected["bfloat16.pooled"]);
  }
  EXPECT_LE(ours, 1.25 * theirs);
}

/// Whether an error names the field, or the tensors that do not fit.
bool is_about(const std::string& error, const std::string& field, bool is_misfit) {
  return error.find(field) != std::string::npos ||
         (is_misfit && (error.find("must describe the tensors") != std::string::npos ||
                        error.find("must be a multiple of") != std::string::npos ||
                        error.find("end_token") != std::string::npos));
}

TEST_F(Towers, ObeyEveryFieldOfTheirConfigurationOrRefuseIt) {
  const at::NoGradGuard no_grad;
  for (const auto& c : tower_cases()) {
    const auto expected = c.expected();
    const Fixture changed(c.mutations() + "mutations.pt");
    for (const auto& row : read_rows(c.mutations() + "mutations.txt")) {
      const auto &number = row.at(0), &outcome = row.at(1), &field = row.at(2);
      SCOPED_TRACE(c.name + ", " + c.tower + " " + number + ", " + outcome + ": " + row.at(3));
      const auto folder = c.mutations() + number;
      if (outcome == "refused" || outcome == "misfit") {
        const auto error = value_error([&] { load_tower(c, folder); });
        EXPECT_EQ(error.rfind("load_pretrained: " + folder + "/config.json", 0), 0U) << error;
        EXPECT_TRUE(is_about(error, field, outcome == "misfit")) << error;
        continue;
      }
      try {
        auto model = load_tower(c, folder);
        const auto& pooled = outcome == "changes" ? changed[number] : expected["pooled"];
        EXPECT_LE(difference(pooled_of(model, expected), pooled), kScores);
      } catch (const c10::Error& error) {
        ADD_FAILURE() << error.what_without_backtrace();
      }
    }
  }
}

TEST_F(Towers, AreSavedAsFoldersOfTheirOwn) {
  for (const auto& c : tower_cases()) {
    SCOPED_TRACE(c.name + ", " + c.tower);
    const auto saved = c.folder() + "/saved-" + c.tower;
    save(load_tower(c, c.folder()), saved, c.folder());
    auto again = load_tower(c, saved);
    const auto expected = c.expected();
    EXPECT_LE(difference(pooled_of(again, expected), expected["pooled"]), kScores);
  }
  const auto command = std::string("\"") + HEED_PYTHON + "\" \"" + HEED_TOWERS + "\" check \"" +
                       folder_of("towers") + '"';
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

TEST_F(Towers, AreNotSavedOverThePair) {
  const auto folder = folder_of("towers/clip-plain");
  const auto model = load_pretrained<ImageEncoder>(folder);
  EXPECT_ERROR("save_pretrained: folder (" + folder + ") must be another folder than that of " +
                   folder + "/config.json, which describes other models too",
               save_pretrained(model, folder, folder));
  EXPECT_ERROR("load_pretrained: " + folder +
                   "/config.json must describe a Decoder; it describes "
                   "a TextEncoder",
               load_pretrained(folder));
}

/// The factor and the offset of the products of texts and images are in the file.
TEST_F(Towers, LeaveTheScaleOfTheProductsInTheFile) {
  const auto weights = read_weights(folder_of("towers/siglip-plain") + "/model.safetensors");
  EXPECT_EQ(weights.at("logit_scale").numel(), 1);
  EXPECT_EQ(weights.at("logit_bias").numel(), 1);
}

}  // namespace
}  // namespace heed::test::pretrained
