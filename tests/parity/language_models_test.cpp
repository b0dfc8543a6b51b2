// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <gtest/gtest.h>
#include <heed/alibi.h>
#include <heed/attend.h>
#include <heed/decoder.h>
#include <heed/latent_attention.h>
#include <heed/name_maps.h>
#include <heed/weights.h>
#include <torch/optim/adamw.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fixture.h"
#include "support/expect.h"
#include "support/weight_files.h"

namespace heed::test {
namespace {

const std::string kFolder = std::string(HEED_PARITY_FIXTURES) + "/language_models";
constexpr int64_t V = 199, E = 64, H = 4, G = 2, kLayers = 3;

/// language_models.py says what is in the files.
class LanguageModels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kFolder + "/attention.pt")) {
      GTEST_SKIP() << read_bytes(kFolder + "/skipped") << why_no_fixtures();
    }
  }
};

DecoderOptions llama_options(int64_t head_dim, const RotaryEmbeddingOptions& rotary) {
  const auto attention = GroupQueryAttentionOptions(E, H, G)
                             .head_dim(head_dim)
                             .input_bias(false)
                             .output_bias(false)
                             .rotary(rotary);
  return DecoderOptions(V,
                        TransformerBlockOptions(attention)
                            .norm(NormKind::rms_norm)
                            .norm_eps(1e-6)
                            .feed_forward(FeedForwardOptions(E)
                                              .hidden_dim(96)
                                              .activation(Activation::swiglu)
                                              .bias(false)),
                        kLayers)
      .tied_head(false);
}

std::map<std::string, DecoderOptions> models() {
  const auto rotary = [](int64_t head_dim) { return RotaryEmbeddingOptions(head_dim); };
  auto llama3 = llama_options(16, rotary(16).base(500000.0).scaling(Llama3Scaling(8.0, 32)));
  auto mistral = llama_options(24, rotary(24));
  mistral.stack().block().attention().window(7);
  auto qwen3 = llama_options(24, rotary(24));
  qwen3.stack().block().attention().qk_norm(QkNormOptions());
  const auto gpt2 =
      DecoderOptions(V,
                     TransformerBlockOptions(GroupQueryAttentionOptions(E, H, H))
                         .feed_forward(FeedForwardOptions(E).activation(Activation::gelu_tanh)),
                     kLayers);
  return {{"llama", llama_options(16, rotary(16))},
          {"llama3", llama3.tied_head(true)},
          {"mistral", mistral},
          {"qwen3", qwen3},
          {"gpt2", DecoderOptions(gpt2).positions(
                       PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(128))}};
}

/// The token with the highest score, again and again, from the cache.
at::Tensor generate(Decoder& model, at::Tensor tokens, int64_t count) {
  auto caches = model->make_caches(tokens.size(0), tokens.size(1) + count);
  std::vector<at::Tensor> generated;
  for (int64_t i = 0; i < count; ++i) {
    const auto scores = model->forward_cached(tokens, caches);
    tokens = scores.select(1, -1).argmax(-1, /*keepdim=*/true);
    generated.push_back(tokens);
  }
  return at::cat(generated, 1);
}

TEST_F(LanguageModels, GiveTransformersScoresAndTokens) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, options] : models()) {
    const Fixture fixture(kFolder + "/" + name + ".pt");
    for (const auto device : devices()) {
      Decoder model(options);
      const auto map = name == "gpt2" ? name_maps::gpt2() : name_maps::llama();
      const auto path = kFolder + "/" + name + "/model.safetensors";
      load_weights(*model, path, LoadOptions().name_map(map));
      // The map turned around gives the file's tensors; save_pretrained leaves tied ones out.
      auto inverted = map.invert(*model);
      for (const auto& [own, tensor] : read_weights(path)) {
        EXPECT_TRUE(inverted[own].equal(tensor)) << name << " " << own;
        inverted.erase(own);
      }
      inverted.erase("lm_head.weight");
      EXPECT_TRUE(inverted.empty()) << name;
      model->to(device);
      model->eval();
      // Scores up to 40 after three layers, each of sums of up to 96 float32 terms.
      EXPECT_TRUE(is_close(model(fixture["tokens"].to(device)), fixture["scores"], 1e-4)) << name;
      const auto prompt = fixture["tokens"].narrow(0, 0, 1).to(device);
      EXPECT_TRUE(generate(model, prompt, 64).cpu().equal(fixture["generated"])) << name;
    }
  }
}

TEST_F(LanguageModels, TrainedHereComputeTheSameInPython) {
  const auto tokens = Fixture(kFolder + "/llama.pt")["tokens"];
  Decoder model(models().at("llama"));
  load_weights(*model, kFolder + "/llama/model.safetensors",
               LoadOptions().name_map(name_maps::llama()));
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  const auto length = tokens.size(1) - 1;
  const auto before = model(tokens).detach();
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto scores = model(tokens.narrow(1, 0, length)).flatten(0, 1);
    at::cross_entropy_loss(scores, tokens.narrow(1, 1, length).flatten()).backward();
    optimizer.step();
  }
  const auto scores = model(tokens).detach();
  ASSERT_GT((scores - before).abs().max().item<double>(), 1.0);  // it is another model now
  save_weights(*model, kFolder + "/trained.safetensors");
  save_weights(Box({{"tokens", tokens}, {"scores", scores}}),
               kFolder + "/trained_scores.safetensors");
  const auto command = std::string("\"") + HEED_PYTHON + "\" \"" + HEED_LANGUAGE_MODELS +
                       "\" check \"" + kFolder + '"';
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

TEST_F(LanguageModels, AttendAsGemma2GptOssAndBloomDo) {
  const at::NoGradGuard no_grad;
  const Fixture fixture(kFolder + "/attention.pt");
  const auto &query = fixture["query"], &key = fixture["key"], &value = fixture["value"];
  EXPECT_TRUE(is_close(attend(query, key, value, AttendOptions().causal(true).softcap(1.5)),
                       fixture["softcap"], 2e-6));
  EXPECT_TRUE(
      is_close(attend(query, key, value, AttendOptions().causal(true).sinks(fixture["sinks"])),
               fixture["with_sinks"], 2e-6));
  // Bloom's bias counts from the first key: the softmax is the same.
  const auto options = AttendOptions().causal(true);
  EXPECT_TRUE(
      is_close(attend(query, key, value, AttendOptions(options).alibi_slopes(alibi_slopes(H))),
               attend(query, key, value, AttendOptions(options).bias(fixture["alibi"])), 2e-6));
}

TEST_F(LanguageModels, AttendToLatentVectorsAsDeepSeekDoes) {
  const at::NoGradGuard no_grad;
  const YarnScaling yarn(40.0, 16);
  const std::map<std::string, std::optional<YarnScaling>> cases = {
      {"latent", {}},
      {"latent_keys", {}},
      {"latent_yarn", YarnScaling(yarn).mscale(1.0).mscale_all_dim(1.0)},
      {"latent_scales", YarnScaling(yarn).mscale(0.7).mscale_all_dim(0.4)},
      {"latent_one_scale", YarnScaling(yarn).mscale_all_dim(0.4)},
      {"latent_yarn_v2", YarnScaling(yarn).mscale(0.707).mscale_all_dim(0.707)}};
  for (const auto& [name, scaling] : cases) {
    const Fixture fixture(kFolder + "/" + name + ".pt");
    auto options =
        LatentAttentionOptions(E, H, 32).plain_head_dim(16).rotary_head_dim(8).value_head_dim(12);
    if (name != "latent_keys") options.query_rank(24);
    if (scaling) {
      options.rotary(
          RotaryEmbeddingOptions(8).pairing(RotaryPairing::interleaved).scaling(*scaling));
    }
    LatentAttention attention(options);
    load_weights(*attention, kFolder + "/" + name + ".safetensors",
                 LoadOptions().name_map(name_maps::deepseek_attention()));
    EXPECT_TRUE(is_close(attention(fixture["x"]), fixture["output"], 1e-5)) << name;
    auto cache = attention->make_cache(2, 11);
    EXPECT_TRUE(is_close(attention->forward_cached(fixture["x"], cache), fixture["output"], 1e-5))
        << name;
  }
}

}  // namespace
}  // namespace heed::test
