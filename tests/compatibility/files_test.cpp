// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <map>
#include <string>

#include "modules_of_0_2.h"
#include "modules_of_0_3.h"
#include "support/expect.h"
#include "training.h"

// Files that earlier versions wrote load in this one, and give the numbers that those gave. Kernels
// differ between versions and processors, so outputs may differ by rounding.

namespace heed::compatibility {
namespace {

using test::are_alike;
using test::are_equal;

constexpr double kRounding = 1e-5;

std::string file_of(const std::string& version, const std::string& name) {
  return std::string(HEED_COMPATIBILITY_FILES) + "/" + version + "/" + name;
}

/// The inputs and outputs of a version.
class Written {
 public:
  explicit Written(const std::string& version)
      : tensors_(read_weights(file_of(version, "outputs.safetensors"))) {}

  at::Tensor operator()(const std::string& name, const std::string& key) const {
    return tensors_.at(name + "." + key);
  }

 private:
  NamedTensors tensors_;
};

/// A visitor that loads a module's weights of modules.safetensors and compares its output.
auto expect_outputs_of(const std::string& version) {
  return [=, written = Written(version)](const std::string& name, auto module,
                                         const at::Tensor& /*x*/, const auto& call) {
    SCOPED_TRACE(name);
    const at::NoGradGuard no_grad;
    module->eval();
    if (!module->parameters().empty()) {
      const auto options = LoadOptions().prefix(name + ".");
      load_weights(*module, file_of(version, "modules.safetensors"), options);
    }
    EXPECT_TRUE(
        are_alike({call(module, written(name, "x"))}, {written(name, "output")}, kRounding));
  };
}

TEST(FilesOf02, HoldTheWeightsOfEveryModule) { visit_modules_of_0_2(expect_outputs_of("0.2")); }

/// `make` makes a module whose weights are in three files.
template <typename Make>
void expect_same_weights(const std::string& name, const Make& make) {
  auto expected = make();
  load_weights(*expected, file_of("0.2", "modules.safetensors"), LoadOptions().prefix(name + "."));
  const auto check = [&](const std::string& how, const auto& load) {
    auto module = make();
    load(module);
    EXPECT_TRUE(are_equal(module->parameters(), expected->parameters())) << name << ", " << how;
  };
  check("TorchScript",
        [&](auto& module) { load_weights(*module, file_of("0.2", name + ".torchscript")); });
  check("torch::save, load_weights",
        [&](auto& module) { load_weights(*module, file_of("0.2", name + ".archive")); });
  check("torch::save, torch::load",
        [&](auto& module) { torch::load(module, file_of("0.2", name + ".archive")); });
}

TEST(FilesOf02, HoldTheSameWeightsInOtherFormats) {
  expect_same_weights("group_query_attention",
                      [] { return GroupQueryAttention(GroupQueryAttentionOptions(E, H, G)); });
  expect_same_weights("decoder", [] { return Decoder(llama()); });
}

/// Goes on with the training of 0.2, whose optimizer was torch::optim::AdamW.
template <typename Optimizer>
void expect_training_goes_on() {
  const auto folder = file_of("0.2", "training");
  MultiHeadAttention module(E, H);
  module->eval();
  torch::load(module, folder + "/module.archive");
  Optimizer optimizer(module->parameters(), torch::optim::AdamWOptions());
  torch::load(optimizer, folder + "/adamw.archive");
  GradScaler scaler;
  torch::load(scaler, folder + "/grad_scaler.archive");
  const Written written("0.2");
  const auto x = written("training", "x");
  train_step(module, optimizer, scaler, x);
  EXPECT_EQ(scaler.scale(), written("training", "scale").item<double>());
  EXPECT_TRUE(are_alike({module->forward(x)}, {written("training", "output")}, kRounding));
}

TEST(FilesOf02, HoldATrainingThatGoesOn) {
  expect_training_goes_on<torch::optim::AdamW>();
  expect_training_goes_on<FusedAdamW>();
}

TEST(FilesOf02, HoldAPublishedModel) {
  const Written written("0.2");
  auto model = load_pretrained(file_of("0.2", "llama"));
  EXPECT_TRUE(are_alike({model->forward(written("published", "x"))},
                        {written("published", "output")}, kRounding));
}

TEST(FilesOf03, HoldTheWeightsOfEveryModule) { visit_modules_of_0_3(expect_outputs_of("0.3")); }

TEST(FilesOf03, HoldPackedWeights) {
  const Written written("0.3");
  const at::NoGradGuard no_grad;
  visit_packings([&](const std::string& name, const PackOptions& /*options*/, int64_t width,
                     double tolerance) {
    SCOPED_TRACE(name);
    auto model = packable_decoder(width);
    load_weights(*model, file_of("0.3", "packed/" + name + ".safetensors"));
    EXPECT_FALSE(model->head.is_empty() ? model->token_embedding->weight.has_storage()
                                        : model->head->weight.has_storage());
    EXPECT_TRUE(
        are_alike({model->forward(written(name, "x"))}, {written(name, "output")}, tolerance));
  });
}

TEST(FilesOf03, HoldATrainingInHalfTypesThatGoesOn) {
  const auto folder = file_of("0.3", "training");
  const Written written("0.3");
  MultiHeadAttention module(E, H);
  module->to(at::kBFloat16);
  module->eval();
  torch::load(module, folder + "/module.archive");
  FusedAdamW optimizer(module->parameters());
  torch::load(optimizer, folder + "/fused_adamw.archive");
  GradScaler scaler(GradScalerOptions().enabled(false));
  const auto x = written("training", "x");
  train_step(module, optimizer, scaler, x);
  // 4 units of bfloat16, in which a step is computed.
  EXPECT_TRUE(are_alike({module->forward(x)}, {written("training", "output")}, 4 * 0x1p-8));
}

TEST(FilesOf03, HoldAnAdapter) {
  const Written written("0.3");
  const at::NoGradGuard no_grad;
  const auto expect_output = [&](auto& module) {
    EXPECT_TRUE(are_alike({module->forward(written("adapter", "x"))},
                          {written("adapter", "output")}, kRounding));
  };
  MultiHeadAttention module(E, H);
  module->eval();
  load_weights(*module, file_of("0.3", "adapter/base.safetensors"));
  load_adapter(*module, file_of("0.3", "adapter"));
  expect_output(module);
  MultiHeadAttention adapted(E, H);
  adapted->eval();
  add_adapter(*adapted, LoraOptions(/*rank=*/2).alpha(4).dora(true));
  load_weights(*adapted, file_of("0.3", "adapter/adapted.safetensors"));
  expect_output(adapted);
  merge_adapter(*adapted);
  expect_output(adapted);
}

}  // namespace
}  // namespace heed::compatibility
