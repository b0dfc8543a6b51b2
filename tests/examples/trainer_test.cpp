// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/adapters.h>
#include <heed/pack_weights.h>
#include <heed/weights.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/script.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "language/checkpoint.h"
#include "language/codec.h"
#include "language/corpus.h"
#include "language/gpt.h"
#include "language/team.h"
#include "language/trainer.h"
#include "language/training_run.h"
#include "small_gpt.h"
#include "support/seeds.h"

namespace heed::examples {
namespace {

namespace fs = std::filesystem;

/// A small GPT whose weights are frozen, and packed if `format` is given, beside adapters. They do
/// not depend on the training's seed, as those of a file do not.
TrainedModel adapted_model(const std::optional<PackFormat>& format = {}) {
  const auto make = [=] {
    torch::manual_seed(test::moved(7));
    auto model = make_gpt(small_options(), 0.1);
    if (format) pack_weights(*model, *format);
    add_adapter(*model, LoraOptions(/*rank=*/4).dropout(0.1));
    return model;
  };
  return {make, small_options().context};
}

TEST_F(Language, GoesOnBitForBit) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "Line " + std::to_string(i * i) + ".\n";
  const auto corpus = bytes_of(text, text.substr(0, 100));
  TrainingOptions training;
  training.steps = 6;
  training.warm_up = 2;
  training.batch_size = 4;
  training.accumulate = 2;
  const std::pair<std::string, TrainedModel> runs[] = {
      {"float32", trained_model(0.1)},
      {"bfloat16", trained_model(0.1)},
      {"float32", adapted_model()},
      {"bfloat16", adapted_model()},
      {"float32", adapted_model(PackFormat::int8)}};
  for (const auto& [dtype, model] : runs) {
    training.dtype = dtype;
    Trainer unbroken(model, training, corpus, at::kCPU, *team);
    for (int i = 0; i < 6; ++i) unbroken.step();
    Trainer broken_off(model, training, corpus, at::kCPU, *team);
    for (int i = 0; i < 3; ++i) broken_off.step();
    broken_off.history().held_out.emplace_back(3, broken_off.evaluate());
    const auto path = (folder_ / "state").string();
    broken_off.save(path, "about it");
    const Checkpoint checkpoint(path, *team);
    EXPECT_EQ(checkpoint.about(), "about it");
    training.seed = 1;  // what is loaded takes its place
    Trainer resumed(model, training, corpus, at::kCPU, *team);
    training.seed = 0;
    resumed.load(checkpoint);
    for (int i = 0; i < 3; ++i) resumed.step();
    EXPECT_EQ(resumed.history().training, unbroken.history().training) << dtype;
    EXPECT_EQ(resumed.history().held_out, broken_off.history().held_out);
    const auto expected = adapter_parameters(*unbroken.model());
    const auto actual = adapter_parameters(*resumed.model());
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i;
  }
}

TEST_F(Language, TrainsAndSavesAnAdapterAlone) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "Line " + std::to_string(i % 7) + ".\n";
  const auto corpus = bytes_of(text, text.substr(0, 100));
  TrainingOptions training;
  training.learning_rate = 0.02;
  training.warm_up = 2;
  training.steps = 30;
  for (const auto& format : {std::optional<PackFormat>(), std::optional(PackFormat::int8)}) {
    Trainer trainer(adapted_model(format), training, corpus, at::kCPU, *team);
    const auto model = trainer.model();
    std::vector<std::pair<at::Tensor, at::Tensor>> frozen;  // packed weights cannot be cloned
    for (const auto& parameter : model->parameters()) {
      if (parameter.requires_grad() || (format && parameter.dim() > 1)) continue;
      frozen.emplace_back(parameter, parameter.clone());
    }
    EXPECT_GE(frozen.size(), 4U);
    int64_t trained = 0;
    for (const auto& parameter : adapter_parameters(*model)) trained += parameter.numel();
    EXPECT_EQ(trainer.trained_parameters(), trained);
    EXPECT_GT(trainer.parameters(), trained);
    const auto before = trainer.evaluate();
    for (int i = 0; i < training.steps; ++i) trainer.step();
    EXPECT_LT(trainer.evaluate(), before - 0.2);
    for (const auto& [after, at_first] : frozen) EXPECT_TRUE(after.equal(at_first));
    const auto path = (folder_ / "state").string();
    trainer.save(path, "about it");
    for (const auto& [name, tensor] : read_weights(path)) {
      if (name.find("model.") != 0) continue;
      EXPECT_THAT(name, ::testing::HasSubstr(".lora_"));
      trained -= tensor.numel();
    }
    EXPECT_EQ(trained, 0);
  }
}

TEST_F(Language, RunsNoCodeOfACheckpoint) {
  const auto path = (folder_ / "evil").string(), written = (folder_ / "written").string();
  torch::jit::Module evil("__torch__.Evil");
  evil.define(R"(
    def __getstate__(self):
      return 1
    def __setstate__(self, state: int):
      torch.save(torch.zeros([1]), ")" +
              written + R"(")
  )");
  evil.save(path);
  torch::jit::load(path);
  ASSERT_TRUE(fs::remove(written)) << "LibTorch's reader runs the code";
  EXPECT_ANY_THROW(Checkpoint(path, *team));
  EXPECT_FALSE(fs::exists(written));
}

/// A checkpoint of which one thing is changed.
class ChangedCheckpoint : public Language {
 protected:
  ChangedCheckpoint() {
    training_.steps = 3;
    training_.warm_up = 1;
    training_.batch_size = 2;
    const auto text = std::string(200, 'a') + "bc";
    corpus_ = bytes_of(text, text);
    Trainer trainer(trained_model(), training_, corpus_, at::kCPU, *team);
    for (int i = 0; i < 2; ++i) trainer.step();
    trainer.history().held_out.emplace_back(2, trainer.evaluate());
    trainer.save(path_, "about it");
    tensors_ = read_weights(path_);
    tensors_.erase("about");
  }

  std::string error_with(const std::string& name, const at::Tensor& tensor) {
    auto changed = tensors_;
    changed[name] = tensor;
    return error_of(changed);
  }

  std::string error_of(const NamedTensors& tensors) {
    write_checkpoint(tensors, "about it", path_);
    Trainer trainer(trained_model(), training_, corpus_, at::kCPU, *team);
    try {
      trainer.load(Checkpoint(path_, *team));
    } catch (const std::runtime_error& error) {
      const std::string message = error.what(), begin = "cannot read " + path_ + ": ";
      EXPECT_EQ(message.substr(0, begin.size()), begin);
      return message.substr(std::min(message.size(), begin.size()));
    }
    return "";
  }

  std::string path_ = folder_ / "changed";
  TrainingOptions training_;
  TokenCorpus corpus_;
  NamedTensors tensors_;
};

TEST_F(ChangedCheckpoint, IsRefusedIfATensorHasAnotherShapeOrDtype) {
  ASSERT_EQ(error_of(tensors_), "");
  const auto [size, of_training] = std::pair(tensors_.size(), tensors_.at("training_losses"));
  ASSERT_GT(size, 70U);
  EXPECT_EQ(of_training.numel(), 2);
  for (const auto& [name, tensor] : tensors_) {
    const auto longer = at::zeros({tensor.numel() + 1, 3}, tensor.options());
    EXPECT_THAT(error_with(name, longer),
                ::testing::HasSubstr(name + " (" + c10::toString(tensor.scalar_type()) + " [" +
                                     std::to_string(tensor.numel() + 1) + ", 3]) must be "));
    EXPECT_THAT(error_with(name, tensor.to(at::kInt)), ::testing::HasSubstr(name + " (Int ["))
        << name;
    auto fewer = tensors_;
    fewer.erase(name);
    // A file may lack a step: the optimizer has no state of a parameter before its first gradient.
    const auto error = error_of(fewer);
    if (name.find("optimizer.step.") == 0) {
      EXPECT_EQ(error, "");
    } else {
      EXPECT_EQ(error, "it has no " + name + ", and is no training's state");
    }
  }
  EXPECT_EQ(error_with("model.token_embedding.weight", at::zeros({256, 31})),
            "model.token_embedding.weight (Float [256, 31]) must be Float [256, 32]");
}

TEST_F(ChangedCheckpoint, IsRefusedIfAValueIsNone) {
  const auto losses = [](double step, double loss) {
    return at::tensor(std::vector<double>{step, loss}, at::kDouble).view({1, 2});
  };
  EXPECT_EQ(error_with("held_out_losses", losses(2, 5)), "");
  for (const auto& wrong : {losses(-1, 5), losses(3, 5), losses(NAN, 5), losses(1, INFINITY)}) {
    EXPECT_EQ(error_with("held_out_losses", wrong),
              "held_out_losses must be finite, each with a step that was done");
  }
  const std::string training = "training_losses must be finite, and one a step";
  EXPECT_EQ(error_with("training_losses", at::full({2}, NAN, at::kDouble)), training);
  EXPECT_EQ(error_with("training_losses", at::zeros({4}, at::kDouble)), training);
  const auto step = "optimizer.step.token_embedding.weight";
  for (const int64_t wrong : {int64_t{-1}, int64_t{0}, int64_t{4}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(error_with(step, at::scalar_tensor(wrong, at::kLong)),
              step + std::string(" is out of range"));
  }
}

/// LibTorch would read beyond the state's numbers.
TEST_F(ChangedCheckpoint, IsRefusedIfItsGeneratorReadsTooFar) {
  const auto changed = [&](int64_t left, int64_t seeded, int64_t next) {
    auto state = tensors_.at("generator").clone();
    auto* bytes = state.mutable_data_ptr<uint8_t>();
    const auto first = static_cast<int32_t>(left), second = static_cast<int32_t>(seeded);
    std::memcpy(bytes + 8, &first, 4);
    std::memcpy(bytes + 12, &second, 4);
    std::memcpy(bytes + 16, &next, 8);
    return error_with("generator", state);
  };
  EXPECT_EQ(changed(1, 1, 0), "");
  EXPECT_EQ(changed(624, 1, 1), "");
  const std::string wrong = "generator is no generator's state";
  EXPECT_EQ(changed(10, 1, 624), wrong);
  EXPECT_EQ(changed(624, 1, 2), wrong);
  EXPECT_EQ(changed(0, 1, 0), wrong);
  EXPECT_EQ(changed(1, 0, 0), wrong);
  EXPECT_EQ(changed(1, 1, -1), wrong);
  EXPECT_EQ(changed(1, 1, INT64_MAX), wrong);
  EXPECT_EQ(error_with("generator", at::zeros({8}, at::kByte)), wrong);
}

TEST_F(ChangedCheckpoint, IsReadOrRefusedWhateverItsBytes) {
  std::ifstream file(path_, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  const auto header = bytes.find("}}") + 2;  // where names and shapes stand
  std::mt19937 random(3);
  const auto below = [&](size_t end) {
    return std::uniform_int_distribution<size_t>(0, end - 1)(random);
  };
  int read = 0;
  constexpr int kFiles = 200;
  for (int i = 0; i < kFiles; ++i) {
    auto changed = bytes;
    for (auto count = 1 + below(3); count > 0; --count) {
      changed[below(below(2) == 0 ? header : changed.size())] = "0123456789,]\"\xff"[below(14)];
    }
    if (below(4) == 0) changed.resize(below(changed.size()));
    write("changed", changed);
    try {
      Trainer trainer(trained_model(), training_, corpus_, at::kCPU, *team);
      trainer.load(Checkpoint(path_, *team));
      ++read;
    } catch (const std::exception&) {
    }
  }
  EXPECT_GT(read, 0);
  EXPECT_LT(read, kFiles);
}

/// Trains a tiny model, whose options are the number of layers, and a rank that may be left out.
class TinyTask : public TrainingTask {
 public:
  explicit TinyTask(CLI::App& app) {
    app.add_option("--layers", model_.layers)->check(CLI::Range(1, 4));
    app.add_option("--rank", rank_)->check(CLI::Range(1, 4));
  }

  nlohmann::json recipe() const override {
    return {{"layers", model_.layers}, {"rank", rank_ ? nlohmann::json(*rank_) : nlohmann::json()}};
  }
  void take_recipe(const nlohmann::json& saved, const CLI::App& /*app*/) override {
    saved.at("layers").get_to(model_.layers);
  }
  TokenCorpus read_text(const std::string& path) override {
    return encode(read_corpus(path), *byte_codec());
  }
  TrainedModel model() const override {
    return {[=] { return make_gpt(model_); }, model_.context};
  }
  void write_model(const Decoder& /*model*/, double /*loss*/,
                   const LossHistory& /*history*/) override {}

 private:
  GptOptions model_ = small_options();
  std::optional<int> rank_;
};

TEST_F(Language, RefusesOptionsInACheckpointThatTheCommandLineRefuses) {
  CommandLine app("", "tiny");
  RunOptions options;
  add_run_options(app, options, "");
  TinyTask task(app);
  options.out = folder_ / "run";
  options.text = write("text", std::string(400, 'a'));
  options.training.steps = 2;
  options.stop_after = 1;
  run_training(task, options, app, *team);
  options.resume = true;
  const auto path = options.checkpoint();
  auto tensors = read_weights(path);
  const auto about = Checkpoint(path, *team).about();
  tensors.erase("about");
  const auto error_with = [&](const std::string& pointer, const nlohmann::json& value) {
    auto changed = nlohmann::json::parse(about);
    changed[nlohmann::json::json_pointer(pointer)] = value;
    write_checkpoint(tensors, changed.dump(), path);
    try {
      run_training(task, options, app, *team);
    } catch (const std::runtime_error& error) {
      const std::string message = error.what(), begin = "cannot read " + path + ": ";
      EXPECT_EQ(message.substr(0, begin.size()), begin);
      return message.substr(std::min(message.size(), begin.size()));
    }
    return std::string();
  };
  const std::string whole = " must be a whole number from 1 to 1000000000000000, not ";
  EXPECT_EQ(error_with("/recipe/batch_size", 0), "--batch-size:" + whole + "0");
  EXPECT_EQ(error_with("/recipe/evaluate_every", 0), "--evaluate-every:" + whole + "0");
  EXPECT_EQ(error_with("/recipe/steps", -1), "--steps:" + whole + "-1");
  EXPECT_EQ(error_with("/recipe/steps", 1.5), "--steps:" + whole + "1.5");
  EXPECT_EQ(error_with("/recipe/steps", nullptr), "--steps:" + whole + "null");
  EXPECT_NE(error_with("/recipe/rank", 0), "");
  EXPECT_EQ(error_with("/recipe/rank", nullptr), "");
  EXPECT_EQ(error_with("/recipe/steps", {1}), "--steps:" + whole + "[1]");
  EXPECT_EQ(error_with("/recipe/steps", "2"), "steps is no option");
  EXPECT_EQ(error_with("/recipe/text", 7), "text is no option");
  EXPECT_EQ(error_with("/recipe/learning_rate", 1e300),
            "--learning-rate: must be above 0 and at most 1e30, not 1e+300");
  EXPECT_EQ(error_with("/recipe/other", 1), "it has too many options");
  EXPECT_EQ(error_with("/recipe/layers", 3),
            "it has no model.stack.blocks.2.attention.fc_k.weight, and is no training's state");
  EXPECT_NE(error_with("/recipe", nlohmann::json::array()), "");
  EXPECT_NE(error_with("", std::string("about it")), "");
  EXPECT_EQ(error_with("/recipe/dtype", "float32"), "");
}

/// Adam's first step changes no number by more than the learning rate.
TEST_F(Language, TrainsABlockThatStandsTwiceOnce) {
  const TrainedModel trained{[] {
                               auto model = make_gpt(small_options());
                               auto& blocks = model->stack->blocks;
                               const auto first = blocks[0];
                               blocks = model->stack->replace_module(
                                   "blocks", torch::nn::ModuleList(first, first));
                               return model;
                             },
                             small_options().context};
  TrainingOptions training;
  training.warm_up = 0;
  training.weight_decay = 0.0;
  const auto text = std::string(200, 'a') + "bc";
  Trainer trainer(trained, training, bytes_of(text, text), at::kCPU, *team);
  auto model = trainer.model();
  const auto block = model->stack->blocks[0];
  int64_t in_block = 0, in_all = 0;
  for (const auto& parameter : block->parameters()) in_block += parameter.numel();
  for (const auto& parameter : model->parameters()) in_all += parameter.numel();
  EXPECT_EQ(trainer.parameters(), in_all - in_block);
  std::vector<at::Tensor> before;
  for (const auto& parameter : block->parameters()) before.push_back(parameter.detach().clone());
  trainer.step();
  double most = 0.0;
  for (size_t i = 0; i < before.size(); ++i) {
    most = std::max(most, (block->parameters()[i] - before[i]).abs().max().item<double>());
  }
  EXPECT_GT(most, 0.9 * training.learning_rate);
  EXPECT_LT(most, 1.01 * training.learning_rate);
}

TEST_F(Language, RefusesALossThatIsNotFinite) {
  const auto text = std::string(200, 'a') + "bc";
  const auto corpus = bytes_of(text, text);
  Trainer trainer(trained_model(), TrainingOptions(), corpus, at::kCPU, *team);
  const at::NoGradGuard no_grad;
  trainer.model()->parameters().front().fill_(NAN);
  const auto diverged = ::testing::ThrowsMessage<std::runtime_error>(
      "the loss is no longer finite: try a smaller --learning-rate");
  EXPECT_THAT([&] { trainer.evaluate(); }, diverged);
  const at::AutoGradMode grad(true);
  EXPECT_THAT([&] { trainer.step(); }, diverged);
}

}  // namespace
}  // namespace heed::examples
