// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <heed/adapters.h>
#include <heed/pack_weights.h>
#include <heed/pretrained.h>
#include <heed/task_heads.h>
#include <heed/weights.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include "fixture.h"
#include "pretrained_models.h"
#include "support/weight_files.h"

namespace heed::test::pretrained {
namespace {

/// A model with an adapter that adapters.py wrote.
struct AdapterCase {
  std::string name, task;  // "plain", "decoder"

  std::string folder() const { return folder_of("adapters/" + name); }
  std::string model() const { return folder() + "/model"; }
  std::string adapter() const { return folder() + "/adapter"; }
  Fixture expected() const { return Fixture(folder() + "/expected.pt"); }
  AdapterOptions options() const { return AdapterOptions().source(model()); }
};

std::vector<AdapterCase> adapter_cases() {
  std::vector<AdapterCase> all;
  for (const auto& row : read_rows(folder_of("adapters/adapters.txt"))) {
    all.push_back({row.at(0), row.at(1)});
  }
  return all;
}

/// adapters.py says what is in the files.
class Adapters : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(folder_of("adapters/adapters.txt"))) {
      const auto why = folder_of("adapters/skipped");
      GTEST_SKIP() << (std::filesystem::exists(why) ? read_bytes(why) : "") << why_no_fixtures();
    }
  }
};

/// visit(model) with the model of a case, without its adapter.
template <typename Visit>
void with_model(const AdapterCase& c, const Visit& visit) {
  if (c.task == "sequence") {
    visit(load_pretrained<SequenceClassifier>(c.model()));
  } else if (c.task == "encoder_decoder") {
    visit(load_pretrained<EncoderDecoder>(c.model()));
  } else {
    visit(load_pretrained(c.model()));
  }
}

template <typename Model>
at::Tensor scores_of(Model& model, const Fixture& expected) {
  if constexpr (std::is_same_v<Model, EncoderDecoder>) {
    return model->forward(expected["tokens"], expected["target"]);
  } else {
    return model->forward(expected["tokens"]);
  }
}

template <typename Model>
double scores_difference(Model& model, const Fixture& expected) {
  const at::NoGradGuard no_grad;
  return difference(scores_of(model, expected), expected["scores"]);
}

/// The gradients of the loss by the names that save_adapter gives their parameters: it is made to
/// save them in their parameters' place.
template <typename Model>
NamedTensors adapter_gradients(Model& model, const AdapterCase& c) {
  const auto expected = c.expected();
  const auto loss = (scores_of(model, expected) * expected["loss.factors"]).square().mean();
  EXPECT_LE(difference(loss.detach(), expected["loss"]), kScores);
  loss.backward();
  for (auto& parameter : adapter_parameters(*model)) {
    const auto gradient = parameter.grad();
    EXPECT_TRUE(gradient.defined());
    if (gradient.defined()) parameter.set_data(gradient);
  }
  const auto folder = c.folder() + "/gradients";
  save_adapter(*model, folder, c.options());
  return read_weights(folder + "/adapter_model.safetensors");
}

TEST_F(Adapters, ComputePeftsScoresBesideTheWeights) {
  for (const auto& c : adapter_cases()) {
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    with_model(c, [&](auto model) {
      EXPECT_GT(scores_difference(model, expected), 1e-3);  // the adapter makes a difference
      load_adapter(*model, c.adapter(), c.options());
      EXPECT_LE(scores_difference(model, expected), kScores);
      EXPECT_LE(check_gradients(adapter_gradients(model, c), expected), kGradients);
    });
  }
}

TEST_F(Adapters, ComputePeftsScoresInTheWeights) {
  for (const auto& c : adapter_cases()) {
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    with_model(c, [&](auto model) {
      load_adapter(*model, c.adapter(), c.options());
      merge_adapter(*model);
      EXPECT_LE(scores_difference(model, expected), kScores);
      EXPECT_EQ(adapter_parameters(*model).size(), model->parameters().size());
      // A model without an adapter is one like any other.
      save_pretrained(model, c.folder() + "/merged", c.model());
      auto again = load_pretrained<decltype(model)>(c.folder() + "/merged");
      EXPECT_LE(scores_difference(again, expected), kScores);
    });
  }
}

TEST_F(Adapters, ComputePeftsScoresBesidePackedWeights) {
  for (const auto& c : adapter_cases()) {
    if (c.task == "sequence") continue;  // the file has a classifier's new weight
    SCOPED_TRACE(c.name);
    const auto expected = c.expected();
    with_model(c, [&](auto model) {
      pack_weights(*model, PackOptions(PackFormat::float32));
      load_adapter(*model, c.adapter(), c.options());
      EXPECT_LE(scores_difference(model, expected), kScores);
      EXPECT_LE(check_gradients(adapter_gradients(model, c), expected), kGradients);
    });
  }
}

TEST_F(Adapters, AreReadByPeft) {
  if (!std::filesystem::exists(HEED_ADAPTERS)) GTEST_SKIP() << HEED_ADAPTERS << " is not there";
  for (const auto& c : adapter_cases()) {
    with_model(c, [&](auto model) {
      load_adapter(*model, c.adapter(), c.options());
      save_adapter(*model, c.folder() + "/saved", c.options());
    });
  }
  const auto command = std::string("'") + HEED_PYTHON + "' '" + HEED_ADAPTERS + "' check '" +
                       folder_of("adapters") + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);  // NOLINT(cert-env33-c)
}

}  // namespace
}  // namespace heed::test::pretrained
