// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/adapters.h>
#include <heed/autocast.h>
#include <heed/decoder.h>
#include <heed/feed_forward.h>
#include <heed/linear.h>
#include <heed/mixture_of_experts.h>
#include <heed/pack_weights.h>
#include <heed/pretrained.h>
#include <heed/weights.h>
#include <torch/autograd.h>
#include <torch/serialize.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "support/temporary_folder.h"
#include "support/transformers.h"

namespace heed::test {
namespace {

constexpr int64_t kWidth = 32, kHidden = 64;

FeedForward make_layer() {
  torch::manual_seed(moved(311));
  return FeedForward(FeedForwardOptions(kWidth).hidden_dim(kHidden).activation(Activation::relu));
}

/// Draws the parameters that add_adapter sets to 0, too.
void randomize(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : adapter_parameters(module)) {
    parameter.add_(0.1 * uniform(parameter.sizes(), parameter.scalar_type()));
  }
}

/// x W^T + b with the adapter of a Linear, as the papers write it, in float64.
at::Tensor adapted(const at::Tensor& x, const NamedTensors& tensors, const std::string& name,
                   double scale) {
  const auto wide = [&](const std::string& part) {
    return tensors.at(name + part).to(at::kDouble);
  };
  auto weight = wide(".weight") + scale * at::matmul(wide(".lora_b"), wide(".lora_a"));
  if (tensors.count(name + ".lora_magnitude") > 0) {
    const auto lengths = (weight * weight).sum(1, /*keepdim=*/true).sqrt();
    weight = wide(".lora_magnitude").unsqueeze(1) * weight / lengths;
  }
  return at::matmul(x, weight.t()) + wide(".bias");
}

NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value().detach();
  return tensors;
}

TEST(Adapters, ComputeThePapersFormulas) {
  for (const bool dora : {false, true}) {
    for (const bool stabilized : {false, true}) {
      auto layer = make_layer();
      add_adapter(*layer, LoraOptions(4).alpha(6).dora(dora).rank_stabilized(stabilized));
      randomize(*layer);
      const auto scale = stabilized ? 3.0 : 1.5;
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{3, 5, kWidth}, {1, kWidth}}) {
        const auto x = uniform(sizes, at::kFloat);
        const auto tensors = tensors_of(*layer);
        const auto hidden = adapted(x.to(at::kDouble), tensors, "fc_in", scale).relu();
        const auto expected = adapted(hidden, tensors, "fc_out", scale);
        // Two layers of sums of up to 64 float32 terms.
        const auto actual = layer->forward(x).detach().to(at::kDouble);
        EXPECT_LE((actual - expected).abs().max().item<double>(),
                  1e-6 * expected.abs().max().item<double>());
      }
    }
  }
}

TEST(Adapters, AreOfFloat32BesideHalves) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool dora : {false, true}) {
      SCOPED_TRACE(c10::str(dtype, " ", dora));
      auto layer = make_layer();
      layer->to(dtype);
      add_adapter(*layer, LoraOptions(4).alpha(6).dora(dora));
      randomize(*layer);
      for (const auto& parameter : adapter_parameters(*layer)) {
        EXPECT_EQ(parameter.scalar_type(), at::kFloat);
      }
      const auto x = uniform({3, 5, kWidth}, dtype);
      const auto tensors = tensors_of(*layer);
      const auto hidden = adapted(x.to(at::kDouble), tensors, "fc_in", 1.5).relu();
      const auto expected = adapted(hidden, tensors, "fc_out", 1.5);
      const auto y = layer->forward(x);
      EXPECT_EQ(y.scalar_type(), dtype);
      // Products, sums and the hidden layer are rounded to the dtype.
      EXPECT_TRUE(are_alike({y}, {expected}, 8 * unit_roundoff(dtype)));
      y.to(at::kFloat).square().sum().backward();
      for (const auto& parameter : adapter_parameters(*layer)) {
        EXPECT_TRUE(is_finite(parameter.grad()));
      }
      merge_adapter(*layer);
      EXPECT_TRUE(are_alike({layer->forward(x)}, {expected}, 8 * unit_roundoff(dtype)));
    }
  }
}

TEST(Adapters, HaveTheSameGradientsWithCheckpointing) {
  constexpr int64_t V = 40;
  torch::manual_seed(moved(312));
  Decoder model(DecoderOptions(V, block_options(kWidth, 4, 2), 2));
  add_adapter(*model, LoraOptions(4).dora(true));
  randomize(*model);
  const auto tokens = at::randint(V, {2, 9}, at::kLong),
             targets = at::randint(V, {2, 9}, at::kLong);
  const auto parameters = adapter_parameters(*model);
  const auto gradients = [&](bool checkpointing) {
    model->stack->options.checkpointing(checkpointing);
    return torch::autograd::grad({model->loss(tokens, targets)}, parameters);
  };
  EXPECT_TRUE(are_alike(gradients(true), gradients(false), 1e-6));
}

/// The bias of the scores is added to those of an adapted head, which has none of its own.
TEST(Adapters, AdaptAHeadOfBiasedScores) {
  constexpr int64_t V = 40;
  torch::manual_seed(moved(314));
  Decoder model(
      DecoderOptions(V, block_options(kWidth, 4, 2), 2).tied_head(false).score_bias(true));
  model->to(at::kDouble);
  add_adapter(*model, LoraOptions(4).target_modules({"head", "fc_q"}));
  randomize(*model);
  {
    const at::NoGradGuard no_grad;
    model->score_bias.uniform_(-3, 3);
  }
  const auto tokens = at::randint(V, {2, 9}, at::kLong),
             targets = at::randint(V, {2, 9}, at::kLong);
  const auto scores = model->forward(tokens).flatten(0, 1);
  const auto expected = at::cross_entropy_loss(scores, targets.flatten());
  const auto loss = model->loss(tokens, targets);
  EXPECT_TRUE(are_alike({loss}, {expected}, 1e-12));
  const auto parameters = adapter_parameters(*model);
  EXPECT_TRUE(are_alike(torch::autograd::grad({loss}, parameters),
                        torch::autograd::grad({expected}, parameters), 1e-10));
}

/// Before the adapters are merged, and after.
TEST(Adapters, AdaptTheExpertsOfAMixture) {
  torch::manual_seed(moved(313));
  MixtureOfExperts mixture(MixtureOfExpertsOptions(kWidth, /*expert_num=*/4, /*top_k=*/2));
  const auto x = uniform({2, 7, kWidth}, at::kFloat);
  const auto plain = mixture->forward(x).detach();
  for (const bool dora : {false, true}) {
    add_adapter(*mixture, LoraOptions(4).dora(dora));
    randomize(*mixture);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {  // of autocast, of which one is off
      const Autocast autocast(at::kCPU, dtype);
      const auto y = mixture->forward(x);
      y.to(at::kFloat).square().sum().backward();
    }
    const auto y = mixture->forward(x);
    EXPECT_FALSE(at::allclose(y, plain, 1e-3, 1e-3));
    for (const auto& parameter : adapter_parameters(*mixture)) {
      EXPECT_TRUE(parameter.grad().defined() && parameter.grad().abs().max().item<float>() > 0);
    }
    merge_adapter(*mixture);
    EXPECT_TRUE(are_alike({mixture->forward(x)}, {y}, 1e-5));
  }
}

TEST(Adapters, BeginWithoutAnEffectAndAreTrainedAlone) {
  auto layer = make_layer();
  const auto x = uniform({3, 5, kWidth}, at::kFloat);
  const auto before = layer->forward(x).detach();
  add_adapter(*layer, LoraOptions(4).target_modules({"fc_out"}));
  EXPECT_TRUE(layer->forward(x).detach().equal(before));
  EXPECT_EQ(adapter_parameters(*layer).size(), 2);
  layer->forward(x).sum().backward();
  const auto parameters = layer->named_parameters();
  EXPECT_TRUE(parameters["fc_out.lora_b"].grad().defined());
  EXPECT_FALSE(parameters["fc_out.weight"].grad().defined());
  EXPECT_FALSE(parameters["fc_in.weight"].requires_grad());
}

TEST(Adapters, PassGradientsThroughPackedWeights) {
  for (const auto format : {PackFormat::float32, PackFormat::int8, PackFormat::int4}) {
    auto packed = make_layer(), plain = make_layer();
    pack_weights(*packed, format);
    // The packed weight's numbers are what it makes of the unit vectors.
    const auto unpack = [](const torch::nn::Linear& layer) {
      const at::NoGradGuard no_grad;
      const auto rows = layer->weight.size(1);
      return linear(layer, at::eye(rows)).sub(layer->bias).t().contiguous();
    };
    for (const auto& [from, to] :
         {std::pair{packed->fc_in, plain->fc_in}, std::pair{packed->fc_out, plain->fc_out}}) {
      const at::NoGradGuard no_grad;
      to->weight.copy_(unpack(from));
    }
    const auto x = uniform({3, 5, kWidth}, at::kFloat).requires_grad_();
    std::vector<at::Tensor> found, wanted;
    for (auto* layer : {&packed, &plain}) {
      torch::manual_seed(moved(312));
      add_adapter(**layer, LoraOptions(4));
      randomize(**layer);
      (*layer)->train();
      auto inputs = adapter_parameters(**layer);
      inputs.push_back(x);
      const auto loss = (*layer)->forward(x).square().sum();
      (layer == &packed ? found : wanted) = torch::autograd::grad({loss}, inputs);
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      // Sums of up to 64 float32 terms.
      EXPECT_LE((found[i] - wanted[i]).abs().max().item<double>(),
                1e-5 * wanted[i].abs().max().item<double>());
    }
  }
}

TEST(Adapters, AreSavedLoadedAndMerged) {
  const TemporaryFolder folder("adapters");
  for (const bool dora : {false, true}) {
    auto layer = make_layer();
    const auto x = uniform({3, 5, kWidth}, at::kFloat);
    add_adapter(
        *layer,
        LoraOptions(3).alpha(5).dora(dora).modules_to_save({"fc_in"}).target_modules({"fc_out"}));
    randomize(*layer);
    const auto expected = layer->forward(x).detach();
    save_adapter(*layer, (folder.path() / "saved").string());
    auto other = make_layer();
    load_adapter(*other, (folder.path() / "saved").string());
    EXPECT_TRUE(other->forward(x).detach().equal(expected));
    EXPECT_EQ(adapter_parameters(*other).size(), adapter_parameters(*layer).size());
    merge_adapter(*other);
    EXPECT_LE((other->forward(x).detach() - expected).abs().max().item<double>(),
              1e-6 * expected.abs().max().item<double>());
    EXPECT_EQ(other->named_parameters().size(), 4);

    // Files of all of the module's parameters have those of the adapter too.
    std::stringstream stream;
    torch::save(layer, stream);
    auto again = make_layer();
    add_adapter(*again, LoraOptions(3).alpha(5).dora(dora).target_modules({"fc_out"}));
    torch::load(again, stream);
    EXPECT_TRUE(again->forward(x).detach().equal(expected));
    again->to(at::kDouble);
    EXPECT_LE((again->forward(x.to(at::kDouble)).detach() - expected).abs().max().item<double>(),
              1e-6 * expected.abs().max().item<double>());
  }
}

TEST(AdaptersErrors, NameOptionsAndModules) {
  auto layer = make_layer();
  const auto expect = [&](const std::string& text, const LoraOptions& options) {
    EXPECT_ERROR("add_adapter: " + text, add_adapter(*layer, options));
    EXPECT_TRUE(layer->fc_in->weight.requires_grad());
  };
  expect("rank (0) must be at least 1", LoraOptions(0));
  expect("alpha (0) must be finite and not 0", LoraOptions().alpha(0));
  expect("target_modules (fc_q) must be the end of a Linear's name",
         LoraOptions().target_modules({"fc_in", "fc_q"}));
  expect("modules_to_save (head) must be the end of a module's name",
         LoraOptions().modules_to_save({"head"}));
  expect("modules_to_save (fc_in) must not have Linears of target_modules, such as fc_in.weight",
         LoraOptions().modules_to_save({"fc_in"}));
  EXPECT_ERROR("merge_adapter: module must have an adapter", merge_adapter(*layer));
  const TemporaryFolder folder("adapters");
  EXPECT_ERROR("save_adapter: module must have an adapter",
               save_adapter(*layer, (folder.path() / "saved").string()));
  add_adapter(*layer);
  EXPECT_ERROR("add_adapter: module must not have an adapter already", add_adapter(*layer));
  EXPECT_ERROR(
      "clone: module must not have an adapter: merge_adapter, or clone it before and load "
      "the adapter again",
      layer->clone());
  auto packed = make_layer();
  pack_weights(*packed);
  add_adapter(*packed);
  EXPECT_ERROR("merge_adapter: fc_in must not be packed by pack_weights", merge_adapter(*packed));
}

/// A folder of an adapter, whose files are changed.
class HostileFolder {
 public:
  HostileFolder() {
    auto layer = make_layer();
    add_adapter(*layer, LoraOptions(3).target_modules({"fc_out"}));
    save_adapter(*layer, path_);
    tensors_ = read_weights(weights());
  }

  std::string config() const { return path_ + "/adapter_config.json"; }
  std::string weights() const { return path_ + "/adapter_model.safetensors"; }
  NamedTensors& tensors() { return tensors_; }

  void write_config(const std::string& text) const { std::ofstream(config()) << text; }
  void expect(const std::string& text) const {
    save_weights(tensors_, weights());
    auto layer = make_layer();
    EXPECT_ERROR("load_adapter: " + text, load_adapter(*layer, path_));
    EXPECT_TRUE(layer->fc_in->weight.requires_grad());
    EXPECT_EQ(layer->named_parameters().size(), 4);
  }

 private:
  const TemporaryFolder folder_{"adapters"};
  const std::string path_ = (folder_.path() / "adapter").string();
  NamedTensors tensors_;
};

TEST(AdaptersErrors, NameTensorsOfAFile) {
  const std::string name = "base_model.model.fc_out.lora_A.weight";
  {
    HostileFolder folder;
    folder.tensors()[name] = at::zeros({2, kHidden});
    folder.expect(folder.weights() + ": \"fc_out.lora_A.weight\" [2, 64] must be [3, 64]");
  }
  {
    HostileFolder folder;
    folder.tensors().erase(name);
    folder.expect(folder.weights() + ": \"fc_out.lora_A.weight\" must be there");
  }
  {
    HostileFolder folder;
    folder.tensors()["fc_out.lora_A.weight"] = at::zeros({3, kHidden});
    folder.expect(folder.weights() +
                  ": \"fc_out.lora_A.weight\" must begin with base_model.model.");
  }
  {
    HostileFolder folder;
    folder.tensors()["base_model.model.fc_in.lora_A.weight"] = at::zeros({3, kWidth});
    folder.expect(folder.weights() + ": \"fc_in\" must be one of the config's target_modules");
  }
  {
    HostileFolder folder;
    folder.tensors()["base_model.model.fc_in.bias"] = at::zeros({kHidden});
    folder.expect(folder.weights() +
                  ": \"fc_in.bias\" must be in one of the config's modules_to_save, or a bias that "
                  "it names");
  }
  {
    HostileFolder folder;
    folder.tensors()[name] = at::zeros({3, kHidden}, at::kLong);
    folder.expect(folder.weights() + ": \"" + name + "\" dtype (Long) must be floating-point");
  }
}

/// The config.json of a model whose file has one tensor of all experts.
constexpr auto kStackedExperts = R"({"model_type": "gpt_oss", "vocab_size": 11, "hidden_size": 8,
    "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "num_local_experts": 2, "num_experts_per_tok": 1})";

/// Other layers' adapters are saved.
TEST(AdaptersErrors, NameExpertsWhoseWeightsAreStacked) {
  const TemporaryFolder folder("adapters");
  const auto source = folder.path() / "config.json", out = folder.path() / "saved";
  std::ofstream(source) << kStackedExperts;
  const auto options = AdapterOptions().source(source.string());
  auto model = make_model<Decoder>(source.string());
  add_adapter(*model, LoraOptions(2).target_modules({"fc_q"}));
  save_adapter(*model, out.string(), options);
  auto copy = make_model<Decoder>(source.string());
  load_adapter(*copy, out.string(), options);
  auto other = make_model<Decoder>(source.string());
  add_adapter(*other, LoraOptions(2).target_modules({"fc_out"}));
  EXPECT_ERROR(
      "save_adapter: stack.blocks.0.feed_forward.experts.0.fc_out must have no adapter: source has "
      "its weight in model.layers.0.mlp.experts.down_proj, with those of others",
      save_adapter(*other, out.string(), options));
}

/// A whole stack of experts is trained beside an adapter.
TEST(Adapters, ReplaceStackedExperts) {
  const TemporaryFolder folder("adapters");
  const auto source = folder.path() / "config.json", out = folder.path() / "saved";
  std::ofstream(source) << kStackedExperts;
  const auto options = AdapterOptions().source(source.string());
  auto model = make_model<Decoder>(source.string());
  add_adapter(*model, LoraOptions(2).target_modules({"fc_q"}).modules_to_save({"experts"}));
  randomize(*model);
  save_adapter(*model, out.string(), options);
  auto copy = make_model<Decoder>(source.string());
  load_adapter(*copy, out.string(), options);
  const auto expected = tensors_of(*model), actual = tensors_of(*copy);
  for (const auto& [name, tensor] : expected) {
    const bool is_saved =
        name.find("experts") != std::string::npos || name.find("lora") != std::string::npos;
    if (!is_saved) continue;
    EXPECT_TRUE(actual.at(name).equal(tensor)) << name;
  }
}

TEST(AdaptersErrors, NameFieldsOfAConfig) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"peft_type": "IA3"})", R"(peft_type "IA3" is not supported (LORA))"},
      {R"({"peft_type": "LORA", "r": 0})", "r 0 must be a whole number from 1 to 2147483647"},
      {R"({"peft_type": "LORA", "use_qalora": true})", "use_qalora true is not supported (false)"},
      {R"({"peft_type": "LORA", "target_parameters": ["w"]})",
       R"(target_parameters ["w"] is not supported (null, [], {}))"},
      {R"({"peft_type": "LORA", "target_modules": "("})",
       R"(target_modules "(" must be a regular expression that C++ knows too)"},
      {R"({"peft_type": "LORA", "bias": "some"})",
       R"(bias "some" is not supported (none, all, lora_only))"},
      {R"({"peft_type": "LORA", "new_field": 1})",
       "new_field 1 is not understood; it may change the numbers"},
      {R"({"peft_type": "LORA", "init_lora_weights": "pissa"})",
       R"(init_lora_weights "pissa" changes the model's own weights, which heed does not: convert )"
       "the adapter with PEFT's path_initial_model_for_weight_conversion"},
  };
  for (const auto& [text, error] : cases) {
    const HostileFolder folder;
    folder.write_config(text);
    folder.expect(folder.config() + ": " + error);
  }
  const HostileFolder folder;
  folder.write_config(R"({"peft_type": "LORA", "r": 3, "target_modules": ["fc_in", "fc_out"]})");
  folder.expect(folder.weights() + ": \"fc_in\" must have an adapter: it is one of target_modules");
}

}  // namespace
}  // namespace heed::test
