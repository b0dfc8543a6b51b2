// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/name_maps.h>
#include <heed/transformer.h>
#include <heed/weights.h>

#include <filesystem>
#include <map>
#include <string>

#include "fixture.h"
#include "support/expect.h"

namespace heed::test {
namespace {

/// pytorch_models.py says what is in the files.
class PyTorchModels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(path("encoder_post_output"))) GTEST_SKIP() << why_no_fixtures();
  }

  static std::string path(const std::string& name) {
    return fixture_path("pytorch_models/" + name + ".pt");
  }

  /// The map turned around gives Python's own names, layouts and values.
  static void expect_same(const NamedTensors& actual, const NamedTensors& expected) {
    for (const auto& [name, tensor] : expected) {
      const auto found = actual.find(name);
      ASSERT_NE(found, actual.end()) << name;
      EXPECT_TRUE(found->second.equal(tensor)) << name;
    }
    EXPECT_EQ(actual.size(), expected.size());
  }

  /// In float64, so that equal outputs are equal to 1e-12.
  template <typename Model>
  static void load(Model& model, const std::string& name, const NameMap& names) {
    model->to(at::kDouble);
    model->eval();
    load_weights(*model, path(name), LoadOptions().name_map(names));
    expect_same(names.invert(*model), read_weights(path(name)));
  }
};

struct Stack {
  NormPlacement placement;
  bool final_norm, bias;
  Activation activation;

  EncoderOptions options(bool is_decoder) const {
    const auto attention =
        GroupQueryAttentionOptions(32, 4, 4).causal(is_decoder).input_bias(bias).output_bias(bias);
    return EncoderOptions(
               TransformerBlockOptions(attention)
                   .feed_forward(
                       FeedForwardOptions(32).hidden_dim(48).activation(activation).bias(bias))
                   .cross_attention(is_decoder)
                   .norm_placement(placement)
                   .norm_bias(bias),
               3)
        .final_norm(final_norm);
  }
};

TEST_F(PyTorchModels, AreEncoders) {
  const at::NoGradGuard no_grad;
  const std::map<std::string, Stack> stacks = {
      {"encoder_post", {NormPlacement::post, false, true, Activation::relu}},
      {"encoder_post_norm", {NormPlacement::post, true, true, Activation::gelu}},
      {"encoder_pre", {NormPlacement::pre, false, true, Activation::relu}},
      {"encoder_pre_norm", {NormPlacement::pre, true, false, Activation::relu}}};
  for (const auto& [name, stack] : stacks) {
    const Fixture fixture(path(name + "_output"));
    Encoder model(stack.options(/*is_decoder=*/false));
    load(model, name, name_maps::transformer_encoder());
    EXPECT_TRUE(is_close(model(fixture["x"]), fixture["y"], 1e-12)) << name;
  }
}

TEST_F(PyTorchModels, AreEncodersWithCrossAttention) {
  const at::NoGradGuard no_grad;
  const std::map<std::string, Stack> stacks = {
      {"decoder_post", {NormPlacement::post, false, true, Activation::relu}},
      {"decoder_pre_norm", {NormPlacement::pre, true, true, Activation::relu}}};
  for (const auto& [name, stack] : stacks) {
    const Fixture fixture(path(name + "_output"));
    Encoder model(stack.options(/*is_decoder=*/true));
    load(model, name, name_maps::transformer_decoder());
    const auto inputs = TransformerInputs().memory(fixture["memory"]);
    EXPECT_TRUE(is_close(model(fixture["x"], inputs), fixture["y"], 1e-12)) << name;
  }
}

TEST_F(PyTorchModels, AreNanoGpts) {
  const at::NoGradGuard no_grad;
  for (const bool bias : {true, false}) {
    const std::string name = bias ? "nanogpt" : "nanogpt_without_biases";
    const Fixture fixture(path(name + "_output"));
    const auto attention = GroupQueryAttentionOptions(32, 4, 4).input_bias(bias).output_bias(bias);
    const auto positions = PositionEmbeddingOptions(32).kind(PositionKind::learned).max_length(16);
    Decoder model(DecoderOptions(50,
                                 TransformerBlockOptions(attention)
                                     .feed_forward(FeedForwardOptions(32).bias(bias))
                                     .norm_bias(bias),
                                 3)
                      .positions(positions));
    load(model, name, name_maps::nanogpt());
    EXPECT_TRUE(is_close(model(fixture["x"]), fixture["y"], 1e-12)) << name;
  }
}

}  // namespace
}  // namespace heed::test
