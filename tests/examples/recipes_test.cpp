// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "recipes/images.h"
#include "recipes/models.h"
#include "recipes/positions.h"
#include "recipes/training.h"
#include "recipes/weights.h"
#include "support/expect.h"
#include "support/seeds.h"

namespace heed::test {
namespace {

using namespace recipes;

/// The tensors that recipes.py wrote for a recipe; recipes.py says what a file holds.
class Recipes : public ::testing::Test {
 protected:
  static constexpr double kExact = 1e-10, kSoftmaxInFloat = 1e-5;

  void SetUp() override {
    torch::manual_seed(moved(0));
    if (!std::filesystem::exists(path("other_order"))) GTEST_SKIP() << "recipes.py wrote no files";
  }

  static std::string path(const std::string& name) {
    return std::string(HEED_RECIPES) + "/" + name + ".safetensors";
  }

  template <typename Model>
  static void load(Model& model, const std::string& name, const NameMap& names = {}) {
    model->to(at::kDouble);
    model->eval();
    load_weights(*model, path(name), LoadOptions().prefix("model.").name_map(names));
  }

  /// Compares y, and the gradients of the inputs.
  static void compare(const NamedTensors& file, const std::vector<std::string>& names,
                      const std::function<at::Tensor(const std::vector<at::Tensor>&)>& function,
                      double tolerance) {
    std::vector<at::Tensor> inputs;
    for (const auto& name : names) {
      inputs.push_back(file.at(name).clone());
      if (inputs.back().is_floating_point()) inputs.back().requires_grad_();
    }
    const auto y = function(inputs);
    const auto& expected = file.at("y");
    EXPECT_TRUE(is_close(y, expected, tolerance * largest(expected)));
    (y * file.at("r")).sum().backward();
    for (size_t i = 0; i < names.size(); ++i) {
      const auto gradient = file.find("gradients." + names[i]);
      if (gradient == file.end()) continue;
      EXPECT_TRUE(
          is_close(inputs[i].grad(), gradient->second, tolerance * largest(gradient->second)))
          << names[i];
    }
  }

  /// Compares the gradients of the parameters: those of Python are loaded as weights are.
  template <typename Model>
  static void compare_gradients(Model& model, const std::string& name, const NameMap& names,
                                double tolerance) {
    std::map<std::string, at::Tensor> gradients;
    double size = 0.0;
    for (const auto& parameter : model->named_parameters()) {
      const auto& gradient = parameter.value().grad();
      if (!gradient.defined()) continue;
      gradients[parameter.key()] = gradient;
      size = std::max(size, largest(gradient));
    }
    const auto report = load_weights(
        *model, path(name), LoadOptions().prefix("gradients.model.").name_map(names).strict(false));
    EXPECT_EQ(report.loaded.size(), gradients.size());
    EXPECT_TRUE(report.unexpected.empty() && report.misshapen.empty());
    for (const auto& [key, gradient] : gradients) {
      EXPECT_TRUE(is_close(gradient, model->named_parameters()[key].detach(), tolerance * size))
          << key;
    }
  }

  template <typename Model>
  static void compare_model(Model& model, const std::string& name,
                            const std::vector<std::string>& inputs, const NameMap& names,
                            double tolerance) {
    load(model, name, names);
    compare(
        read_weights(path(name)), inputs,
        [&](const std::vector<at::Tensor>& in) {
          if constexpr (std::is_same_v<Model, T5Encoder>) {
            return model(in[0], key_padding_mask(in[1])) * in[1].unsqueeze(2);
          } else if constexpr (std::is_same_v<Model, LongformerAttention> ||
                               std::is_same_v<Model, SpatialAttention> ||
                               std::is_same_v<Model, Perceiver>) {
            return model(in[0], in[1]);
          } else {
            return model(in[0]);
          }
        },
        tolerance);
    compare_gradients(model, name, names, tolerance);
  }

  static double largest(const at::Tensor& x) { return x.abs().max().item<double>(); }
};

TEST_F(Recipes, T5) {
  T5Encoder model;
  compare_model(model, "t5", {"tokens", "mask"}, t5_names(), kSoftmaxInFloat);
}

TEST_F(Recipes, T5BiasAtAnyDistance) {
  const auto file = read_weights(path("t5_bias"));
  for (const bool bidirectional : {true, false}) {
    const std::string name = bidirectional ? "both" : "past";
    RelativePositionBias bias(RelativePositionBiasOptions(4).bidirectional(bidirectional));
    load_weights(*bias, path("t5_bias"), LoadOptions().prefix(name + ".table."));
    const auto expected = file.at(name + ".bias");
    EXPECT_TRUE(is_close(bias(300, 300), expected, 0));
    EXPECT_TRUE(is_close(bias(7, 300), expected.slice(2, -7), 0));  // the last queries
  }
}

TEST_F(Recipes, Alibi) {
  compare(
      read_weights(path("alibi")), {"query", "key", "value"},
      [](const auto& in) { return attend_with_alibi(in[0], in[1], in[2]); }, 1e-6);
}

TEST_F(Recipes, Conformer) {
  ConformerAttention model(32, 4);
  compare_model(model, "conformer", {"x"}, {}, kSoftmaxInFloat);
}

TEST_F(Recipes, Swin) {
  torch::nn::Sequential model(SwinLayer(32, 4, 4, 0), SwinLayer(32, 4, 4, 2));
  load(model, "swin", swin_names());
  compare(
      read_weights(path("swin")), {"x"}, [&](const auto& in) { return model->forward(in[0]); },
      kExact);
  compare_gradients(model, "swin", swin_names(), kExact);
}

TEST_F(Recipes, Vit) {
  VitClassifier model(std::string(HEED_RECIPES) + "/vit", 10, at::kDouble);
  const auto file = read_weights(path("vit"));
  compare(
      file, {"images"}, [&](const auto& in) { return model(in[0]); }, kExact);
  EXPECT_TRUE(is_close(model->classifier->weight.grad(),
                       file.at("gradients.model.classifier.weight"), 1e-9));
}

TEST_F(Recipes, SpatialAttention) {
  SpatialAttention model(32, 4, 24);
  compare_model(model, "spatial", {"image", "text"}, spatial_names(), kExact);
}

TEST_F(Recipes, Perceiver) {
  auto model = make_perceiver();
  compare_model(model, "perceiver", {"inputs", "mask"}, perceiver_names(), kExact);
}

TEST_F(Recipes, Longformer) {
  LongformerAttention model(32, 4, 8);
  compare_model(model, "longformer", {"x", "is_global"}, {}, kSoftmaxInFloat);
}

TEST_F(Recipes, Mixture) {
  auto model = make_mixture();
  compare_model(model, "mixture", {"x"}, mixture_names(), kSoftmaxInFloat);
}

TEST_F(Recipes, Lora) {
  MultiHeadAttention model(32, 4, 0.0);
  add_lora(model, 4, 8);
  EXPECT_EQ(freeze_all_but(*model, {"lora_"}).size(), 4);
  load(model, "lora");
  const auto file = read_weights(path("lora"));
  compare(
      file, {"x"}, [&](const auto& in) { return model(in[0]); }, kExact);
  for (const auto& parameter : model->named_parameters()) {
    const auto gradient = file.find("gradients.model." + parameter.key());
    ASSERT_EQ(parameter.value().grad().defined(), gradient != file.end()) << parameter.key();
    if (gradient == file.end()) continue;
    EXPECT_TRUE(is_close(parameter.value().grad(), gradient->second, 1e-9)) << parameter.key();
  }

  // A Linear with the merged weight computes the same.
  const at::NoGradGuard no_grad;
  const auto x = file.at("x");
  const auto& lora = dynamic_cast<const LoraLinearImpl&>(*model->fc_q);
  EXPECT_TRUE(is_close(torch::linear(x, lora.merged(), lora.bias), lora.project(x), 1e-12));
}

Decoder rotary_decoder() {
  auto attention = GroupQueryAttentionOptions(32, 4, 2).rotary(RotaryEmbeddingOptions(8));
  Decoder model(DecoderOptions(50, TransformerBlockOptions(attention), 2));
  model->to(at::kDouble);
  return model;
}

TEST_F(Recipes, LoraStartsAsWhatItReplaces) {
  auto model = rotary_decoder();
  const auto tokens = torch::randint(50, {2, 9});
  const auto before = model(tokens).detach();
  add_lora_to_blocks(model->stack, 4, 8);
  EXPECT_TRUE(is_close(model(tokens), before, 1e-12));
  EXPECT_EQ(freeze_all_but(*model, {"lora_"}).size(), 8);
}

/// originals.py's make_gpt.
Decoder gpt(int64_t layers) {
  auto attention = GroupQueryAttentionOptions(32, 4, 4).input_bias(false).output_bias(false);
  auto block = TransformerBlockOptions(attention)
                   .feed_forward(FeedForwardOptions(32).bias(false))
                   .norm_bias(false);
  auto positions = PositionEmbeddingOptions(32).kind(PositionKind::learned).max_length(16);
  Decoder model(DecoderOptions(50, block, layers).positions(positions));
  model->to(at::kDouble);
  return model;
}

TEST_F(Recipes, NanoGpt) {
  auto model = gpt(2);
  load(model, "nanogpt", name_maps::nanogpt());
  model->train();
  auto optimizer = nanogpt_optimizer(*model, 3e-3);
  const auto file = read_weights(path("nanogpt"));
  std::vector<double> losses;
  for (const auto& tokens : file.at("batches").unbind()) {
    losses.push_back(train_step(model, optimizer, tokens));
  }
  const auto found = torch::tensor(losses, at::kDouble);
  EXPECT_LT(found.slice(0, -20).mean().item<double>(), 0.5 * losses.front());  // it learns
  // Rounding differs, and 200 steps let it grow.
  EXPECT_TRUE(is_close(found, file.at("losses"), 1e-12));
}

TEST_F(Recipes, Freezing) {
  auto model = rotary_decoder();
  std::map<std::string, at::Tensor> before;
  for (const auto& p : model->named_parameters()) before[p.key()] = p.value().detach().clone();
  heed::FusedAdamW optimizer(freeze_all_but(*model, {"blocks.1.", "final_norm"}));
  model(torch::arange(20).view({2, 10})).square().sum().backward();
  optimizer.step();
  for (const auto& p : model->named_parameters()) {
    const bool trains = p.key().find("blocks.1.") != std::string::npos ||
                        p.key().find("final_norm") != std::string::npos;
    EXPECT_EQ(p.value().grad().defined(), trains) << p.key();
    EXPECT_EQ(p.value().equal(before[p.key()]), !trains) << p.key();
  }
  EXPECT_THROW(freeze_all_but(*model, {"block.1."}), c10::Error);
}

/// The documents one by one have the packed documents' loss and gradients.
void expect_packed_loss(Decoder model) {
  const std::vector<at::Tensor> documents = {torch::randint(50, {7}), torch::randint(50, {1}),
                                             torch::randint(50, {12})};
  auto sum = torch::zeros({}, at::kDouble);
  for (const auto& document : documents) {
    if (document.numel() == 1) continue;
    auto scores = model(document.slice(0, 0, -1).unsqueeze(0)).squeeze(0);
    sum = sum + torch::cross_entropy_loss(scores, document.slice(0, 1), {}, at::Reduction::Sum);
  }
  (sum / 17).backward();
  const auto expected = model->token_embedding->weight.grad().clone();
  model->zero_grad();
  const auto loss = packed_loss(model, documents);
  EXPECT_TRUE(is_close(loss, sum / 17, 1e-12));
  loss.backward();
  EXPECT_TRUE(is_close(model->token_embedding->weight.grad(), expected, 1e-12));
}

TEST_F(Recipes, PackedDocuments) {
  expect_packed_loss(rotary_decoder());
  expect_packed_loss(gpt(2));
}

TEST_F(Recipes, ARingOfKeys) {
  auto model = load_pretrained<Decoder>(std::string(HEED_RECIPES) + "/mistral",
                                        PretrainedOptions().dtype(at::kDouble));
  const auto file = read_weights(path("mistral"));
  const auto scores = read_one_by_one(model, file.at("tokens"), /*window=*/8);
  EXPECT_TRUE(is_close(scores, file.at("scores"), kSoftmaxInFloat * largest(file.at("scores"))));
}

/// recipes.py's Critic.
struct CriticImpl : torch::nn::Module {
  CriticImpl() {
    auto block = TransformerBlockOptions(GroupQueryAttentionOptions(32, 4, 4))
                     .feed_forward(FeedForwardOptions(32).hidden_dim(64));
    encoder = register_module("encoder", Encoder(EncoderOptions(block, 2).final_norm(false)));
    head = register_module("head", torch::nn::Linear(32, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return head(encoder(x).mean(1)); }

  Encoder encoder{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Critic);

TEST_F(Recipes, GradientPenalty) {
  Critic model;
  load(model, "penalty", name_maps::transformer_encoder());
  const auto file = read_weights(path("penalty"));
  auto critic = [&](const at::Tensor& x) { return model(x); };
  const auto penalty = gradient_penalty(critic, file.at("x"));
  EXPECT_TRUE(is_close(penalty, file.at("y"), kExact));
  (penalty * file.at("r")).backward();
  compare_gradients(model, "penalty", name_maps::transformer_encoder(), kExact);
}

TEST_F(Recipes, Distillation) {
  auto teacher = gpt(2), student = gpt(1);
  load(teacher, "teacher", name_maps::nanogpt());
  load(student, "distillation", name_maps::nanogpt());
  compare(
      read_weights(path("distillation")), {"tokens"},
      [&](const auto& in) { return distillation_loss(teacher, student, in[0], 2.0, 0.7); }, kExact);
  compare_gradients(student, "distillation", name_maps::nanogpt(), kExact);
}

TEST_F(Recipes, Initializers) {
  auto model = rotary_decoder();
  initialize_all(*model, initialize_layer);
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["stack.final_norm.weight"].min().item<double>(), 1.0);
  EXPECT_EQ(parameters["stack.blocks.1.attention.fc_o.bias"].abs().max().item<double>(), 0.0);
  EXPECT_NEAR(parameters["token_embedding.weight"].std().item<double>(), 0.02, 0.002);
}

TEST_F(Recipes, AFusedProjectionOfAnotherOrder) {
  auto model = gpt(2);
  const auto file = path("other_order");
  load(model, "other_order", name_maps::nanogpt());
  EXPECT_THROW(check_port(model, file), c10::Error);
  load(model, "other_order", key_query_value());
  check_port(model, file);
  compare(
      read_weights(file), {"tokens"}, [&](const auto& in) { return model(in[0]); }, kExact);
  compare_gradients(model, "other_order", key_query_value(), kExact);
}

TEST_F(Recipes, ExportToPython) {
  auto model = gpt(2);
  save_for_python(model, path("exported"));
  torch::nn::Module results("results");
  const auto tokens = torch::randint(50, {2, 12});
  results.register_buffer("tokens", tokens);
  results.register_buffer("scores", model(tokens).detach());
  save_weights(results, path("exported_scores"));
  const auto command = std::string("\"") + HEED_PYTHON + "\" \"" + HEED_RECIPES_SCRIPT +
                       "\" read \"" + HEED_RECIPES + '"';
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

/// The errors that the text blocks of docs/recipes.md show, in the order of the page.
std::vector<std::function<void()>> errors_of_the_page() {
  const auto x = torch::randn({2, 10, 64});
  const auto heads = torch::randn({2, 10, 8, 16}), more_keys = torch::randn({2, 12, 8, 16});
  MultiHeadAttention attention(64, 4);
  const auto options = GroupQueryAttentionOptions(64, 4, 2).dropout(0.1);
  Decoder model(DecoderOptions(100, TransformerBlockOptions(options), 1));
  auto step = [model](int64_t length) mutable {
    auto caches = model->make_caches(/*batch=*/1, /*capacity=*/8);
    model->forward_cached(torch::zeros({1, length}, at::kLong), caches);
  };
  auto penalty = [](auto&& critic) {
    torch::manual_seed(moved(0));
    gradient_penalty(critic, torch::randn({2, 5, 64})).backward();
  };
  return {[=] {
            penalty([=](const auto& in) {
              const auto y = in.unsqueeze(1);
              return attend(y, y, y, AttendOptions().dropout(0.1));
            });
          },
          [=] {
            Encoder encoder(
                EncoderOptions(GroupQueryAttentionOptions(64, 4, 2), 1).checkpointing(true));
            penalty([&](const auto& in) { return encoder(in); });
          },
          [=]() mutable {
            initialize_all(*model, [](torch::nn::Module& module) {
              if (module.as<NormImpl>() == nullptr) initialize_layer(module);
            });
          },
          [=]() mutable {
            attention(x, torch::full({10, 10}, -INFINITY).triu(1));
          },
          [=]() mutable {
            attention(x, torch::ones({2, 10}, at::kBool));
          },
          [=] { attend(heads, more_keys, more_keys); },
          [] {
            auto rotary = RotaryEmbeddingOptions(/*head_dim=*/64);
            GroupQueryAttention(GroupQueryAttentionOptions(64, 4, 2).rotary(rotary));
          },
          [=]() mutable { attention(x.to(at::kBFloat16)); },
          [] {
            FeedForward layer(64);
            layer->to(at::kBFloat16);
            save_weights(*layer, "model.safetensors");
            load_weights(*FeedForward(64), "model.safetensors");
          },
          [=]() mutable {
            model->eval();
            step(3);
          },
          [=]() mutable {
            const at::NoGradGuard no_grad;
            model->train();
            step(3);
          },
          [=]() mutable {
            const at::NoGradGuard no_grad;
            model->eval();
            step(9);
          },
          [=]() mutable {
            model(torch::tensor({{1, 100}}));
          }};
}

TEST(RecipesPage, HasTheErrorsAsTheyAre) {
  std::ifstream file(HEED_RECIPES_PAGE);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::current_path(HEED_RECIPES);
  const std::string fence = "```text\n";
  size_t place = 0;
  for (const auto& call : errors_of_the_page()) {
    std::string text;
    try {
      call();
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
    }
    place = page.find(fence, place);
    ASSERT_NE(place, std::string::npos) << "the page does not show: " << text;
    place += fence.size();
    EXPECT_EQ(page.substr(place, page.find("\n```", place) - place), text);
  }
  EXPECT_EQ(page.find(fence, place), std::string::npos) << "no call gives the page's last error";
}

}  // namespace
}  // namespace heed::test
