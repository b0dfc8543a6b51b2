// SPDX-License-Identifier: BSD-3-Clause
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/attention.h>
#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/weights.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/serialize.h>

#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/warnings.h"
#include "unit/weights/saved_tensors.h"

namespace heed::test {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::StartsWith;

Tensors random_like(const Tensors& tensors) {
  auto result = copies(tensors);
  for (auto& item : result) item.value() = uniform(item.value().sizes(), item.value().dtype());
  return result;
}

template <typename Module>
void expect_round_trip(Module module, const std::string& path) {
  for (const auto device : devices()) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      module->to(device, dtype);
      const auto saved = random_like(module->named_parameters());
      script_module("Saved", saved, Tensors()).save(path);
      module->fc_q->bias.requires_grad_(false);
      const auto before = module->named_parameters();
      const auto report = load_weights(*module, path);
      expect_equal_tensors(module->named_parameters(), saved);
      EXPECT_THAT(report.loaded, ElementsAreArray(saved.keys()));
      EXPECT_THAT(report.missing, IsEmpty());
      EXPECT_THAT(report.unexpected, IsEmpty());
      EXPECT_THAT(report.misshapen, IsEmpty());
      for (const auto& item : module->named_parameters()) {
        EXPECT_TRUE(item.value().is_same(before[item.key()])) << item.key();
        EXPECT_EQ(item.value().device(), device) << item.key();
        EXPECT_EQ(item.value().scalar_type(), dtype) << item.key();
        EXPECT_EQ(item.value().requires_grad(), item.key() != "fc_q.bias") << item.key();
      }
    }
  }
}

TEST_F(Weights, AreCopiedIntoTheModulesOwnTensors) {
  expect_round_trip(Attention(4), path_);
  expect_round_trip(MultiHeadAttention(4, 2), path_);
  expect_round_trip(GroupQueryAttention(8, 4, 2), path_);
}

TEST_F(Weights, ReachNestedModulesAndBuffers) {
  torch::nn::Sequential model(torch::nn::BatchNorm1d(3), Attention(3));
  const auto parameters = random_like(model->named_parameters());
  auto buffers = copies(model->named_buffers());
  for (auto& item : buffers) item.value().add_(7);
  save(parameters, buffers);
  const auto report = load_weights(*model, path_);
  expect_equal_tensors(model->named_parameters(), parameters);
  expect_equal_tensors(model->named_buffers(), buffers);
  EXPECT_EQ(model->named_buffers()["0.num_batches_tracked"].item<int64_t>(), 7);
  EXPECT_EQ(model->named_parameters().size(), 2 + 6u);
  EXPECT_EQ(report.loaded.size(), 2 + 6 + 3u);
}

TEST_F(Weights, LoadFromAnArchiveOfTorchSave) {
  AttentionV1 saved(4);
  AttentionV1 module(4);
  torch::save(saved, path_);
  ASSERT_FALSE(module->qkv->weight.equal(saved->qkv->weight));
  load_weights(*module, path_);
  expect_equal_tensors(module->named_parameters(), saved->named_parameters());
}

TEST_F(Weights, OfAModuleWithoutAnyAreAnEmptyArchive) {
  torch::nn::Sequential nothing;
  save(Tensors());
  EXPECT_THAT(load_weights(*nothing, path_).loaded, IsEmpty());
}

/// Weights for Attention(4) that lack one name, have two more, and of which two do not fit.
Tensors misfits() {
  auto tensors = random_like(Attention(4)->named_parameters());
  tensors["fc_q.weight"] = at::ones({8, 4});
  tensors["fc_k.bias"] = at::ones({4}, at::kDouble);
  tensors.erase("fc_v.weight");
  tensors.insert("fc_value.weight", at::ones({4, 4}));
  tensors.insert("temperature", at::ones({}));
  return tensors;
}

TEST_F(Weights, ThatDoNotFitAreListedAndChangeNothing) {
  Attention module(4);
  const auto before = copies(module->named_parameters());
  save(misfits());
  EXPECT_EQ(load_error(*module),
            "load_weights: path (" + path_ +
                ") must fit the module, 3 of whose 6 tensors do\n"
                "  missing: fc_v.weight (nearest in the file: fc_value.weight)\n"
                "  unexpected: fc_value.weight\n"
                "  unexpected: temperature\n"
                "  misshapen: fc_q.weight (Float [4, 4] in the module, Float [8, 4] in the file)\n"
                "  misshapen: fc_k.bias (Float [4] in the module, Double [4] in the file)\n"
                "  LoadOptions that may help: name_map, dtype (Float)");
  expect_equal_tensors(module->named_parameters(), before);
}

TEST_F(Weights, ThatFitAreLoadedWhenNotStrict) {
  Attention module(4);
  const auto before = copies(module->named_parameters());
  const auto saved = misfits();
  save(saved);
  const auto report = load_weights(*module, path_, LoadOptions().strict(false));
  EXPECT_THAT(report.loaded, ElementsAre("fc_q.bias", "fc_k.weight", "fc_v.bias"));
  EXPECT_THAT(report.missing, ElementsAre("fc_v.weight"));
  EXPECT_THAT(report.unexpected, ElementsAre("fc_value.weight", "temperature"));
  EXPECT_THAT(report.misshapen,
              ElementsAre("fc_q.weight (Float [4, 4] in the module, Float [8, 4] in the file)",
                          "fc_k.bias (Float [4] in the module, Double [4] in the file)"));
  auto expected = before;
  for (const auto& name : report.loaded) expected[name] = saved[name];
  expect_equal_tensors(module->named_parameters(), expected);
}

/// Nothing is changed where one of the destinations cannot be copied into.
TEST_F(Weights, NeedTensorsThatHoldEachElementOnce) {
  const auto load = [&](const at::Tensor& last) {
    torch::nn::Module module("Destinations");
    const auto first = module.register_buffer("first", at::zeros({3}));
    module.register_buffer("last", last);
    save(Tensors(), {{"first", at::ones({3})}, {"last", at::ones({4, 3})}});
    const auto error = load_error(module);
    EXPECT_TRUE(first.equal(at::zeros({3}))) << error;
    return error;
  };
  EXPECT_EQ(load(at::zeros({1, 3}).expand({4, 3})),
            "load_weights: last [4, 3] must not repeat elements; its strides are [0, 1]");
  EXPECT_EQ(load(at::zeros({4, 3}, at::kMeta)),
            "load_weights: last must not be on the meta device");
  EXPECT_EQ(load(at::zeros({4, 3}).to_sparse()), "load_weights: last must be a strided tensor");
  at::Tensor inference;
  {
    const c10::InferenceMode mode;
    inference = at::zeros({4, 3});
  }
  EXPECT_EQ(load(inference),
            "load_weights: last must not be an inference tensor outside of c10::InferenceMode");
}

TEST_F(Weights, LoadIntoExpandedTensorsOfOneElement) {
  torch::nn::Module module("Destinations");
  const auto x = module.register_buffer("x", at::zeros({1}).expand({1, 1, 1}));
  save(Tensors(), {{"x", at::ones({1, 1, 1})}});
  load_weights(module, path_);
  EXPECT_EQ(x.item<float>(), 1);
}

/// All tensors of a file were taken for parts of one.
TEST_F(Weights, OfATiedHeadThatDiffersAreRefused) {
  save({{"wte", at::zeros({2, 2})}, {"lm_head", at::ones({2, 2})}});
  torch::nn::Module module("Tied");
  module.register_parameter("wte", at::ones({2, 2}));
  const auto options = LoadOptions().name_map(NameMap().tied("lm_head", {"wte"}));
  EXPECT_EQ(load_error(module, options),
            "load_weights: name map: lm_head -> wte: lm_head must equal wte, to which it is tied "
            "in the module");
  save({{"wte", at::zeros({2, 2})}, {"lm_head", at::zeros({2, 2})}});
  EXPECT_THAT(load_weights(module, path_, options).loaded, ElementsAre("wte"));
  const auto none = at::full({2, 2}, std::numeric_limits<float>::quiet_NaN());
  save({{"wte", none}, {"lm_head", none.clone()}});
  EXPECT_THAT(load_weights(module, path_, options).loaded, ElementsAre("wte"));
  save({{"wte", at::zeros({2, 2})}, {"lm_head", at::zeros({2, 2}, at::kHalf)}});
  EXPECT_EQ(load_error(module, options),
            "load_weights: name map: lm_head -> wte: lm_head must equal wte, to which it is tied "
            "in the module");
}

/// A module in which `embedding` and `head` are one parameter, or two that share their memory.
torch::nn::Module tied_module(const at::Tensor& values, bool by_data) {
  torch::nn::Module module("Tied");
  auto& embedding = module.register_parameter("embedding", values.clone());
  if (by_data) {
    module.register_parameter("head", at::zeros_like(values)).set_data(embedding);
  } else {
    module.register_parameter("head", embedding);
  }
  return module;
}

TEST_F(Weights, OfOneParameterUnderTwoNamesMustBeEqual) {
  const auto values = uniform({700, 3}, at::kFloat);
  auto other = values.clone();
  other[699][2] += 1;
  for (const bool by_data : {false, true}) {
    auto module = tied_module(at::zeros({700, 3}), by_data);
    for (const bool strict : {true, false}) {
      save({{"embedding", values}, {"head", other}});
      EXPECT_EQ(load_error(module, LoadOptions().strict(strict)),
                "load_weights: head must equal embedding in path (" + path_ +
                    "), which are one tensor of the module");
      EXPECT_TRUE(module.parameters()[0].equal(at::zeros({700, 3})));
    }
    save({{"embedding", values}, {"head", values.clone()}});
    EXPECT_THAT(load_weights(module, path_).loaded, ElementsAre("embedding", "head"));
    EXPECT_TRUE(module.parameters()[0].equal(values));
    EXPECT_TRUE(module.parameters()[1].equal(values));
    save({{"head", other}});
    EXPECT_THAT(load_weights(module, path_, LoadOptions().strict(false)).loaded,
                ElementsAre("head"));
    EXPECT_TRUE(module.parameters()[0].equal(other));
  }
}

/// Values are compared as the module will have them, in its dtype.
TEST_F(Weights, OfOneParameterAreComparedBitForBit) {
  const auto are_taken = [&](const at::Tensor& one, const at::Tensor& other,
                             std::optional<at::ScalarType> dtype = {}) {
    auto module =
        tied_module(at::zeros(one.sizes(), dtype.value_or(one.scalar_type())), /*by_data=*/false);
    save({{"embedding", one}, {"head", other}});
    try {
      load_weights(module, path_, LoadOptions().dtype(dtype));
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what_without_backtrace(), StartsWith("load_weights: head must equal"));
      return false;
    }
    return true;
  };
  const auto of = [](double value, at::ScalarType dtype) { return at::full({2, 2}, value, dtype); };
  constexpr auto kNan = std::numeric_limits<double>::quiet_NaN();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat}) {
    EXPECT_TRUE(are_taken(of(kNan, dtype), of(-kNan, dtype))) << dtype;
    EXPECT_TRUE(are_taken(of(1, dtype), of(1, dtype))) << dtype;
    EXPECT_FALSE(are_taken(of(1, dtype), of(2, dtype))) << dtype;
    EXPECT_FALSE(are_taken(of(kNan, dtype), of(1, dtype))) << dtype;
    EXPECT_FALSE(are_taken(of(0, dtype), of(-0.0, dtype))) << dtype;
  }
  EXPECT_TRUE(are_taken(of(0.1, at::kDouble), of(double{0.1F}, at::kDouble), at::kFloat));
  EXPECT_TRUE(are_taken(of(0.1, at::kDouble), of(0.1, at::kFloat), at::kFloat));
  EXPECT_FALSE(are_taken(of(0.1, at::kDouble), of(0.1, at::kFloat), at::kDouble));
  EXPECT_TRUE(are_taken(at::full({}, 0.5), at::full({}, 0.5)));
  EXPECT_FALSE(are_taken(at::full({}, 0.5), at::full({}, 0.25)));
  EXPECT_TRUE(are_taken(at::zeros({0, 3}), at::zeros({0, 3})));
}

TEST_F(Weights, OfOneParameterAreNamedAsTheFileHasThem) {
  const auto values = uniform({4, 4}, at::kFloat);
  const auto options =
      LoadOptions().name_map(NameMap().pack({"a", "b"}, "embedding").transpose("out", "head"));
  auto module = tied_module(at::zeros({4, 4}), /*by_data=*/false);
  const auto save_head = [&](const at::Tensor& head) {
    save({{"a", values.narrow(0, 0, 1)}, {"b", values.narrow(0, 1, 3)}, {"out", head.t()}});
  };
  save_head(values.neg());
  EXPECT_EQ(load_error(module, options), "load_weights: out must equal a, b in path (" + path_ +
                                             "), which are one tensor of the module");
  save_head(values);
  load_weights(module, path_, options);
  EXPECT_TRUE(module.parameters()[0].equal(values));
}

TEST_F(Weights, ThatAreLoadedInPartAreWarnedOf) {
  const Warnings warnings;
  Attention module(4);
  save(misfits());
  load_weights(*module, path_, LoadOptions().strict(false));
  EXPECT_THAT(warnings.messages(),
              ElementsAre("load_weights: path (" + path_ +
                          "): loaded 3 of the module's 6 tensors; missing: 1, misshapen: 2; see "
                          "LoadReport"));
  auto more = random_like(module->named_parameters());
  more.insert("temperature", at::ones({}));
  save(more);
  load_weights(*module, path_, LoadOptions().strict(false));
  EXPECT_EQ(warnings.messages().size(), 1);
}

TEST_F(Weights, AreReadWithoutAModule) {
  const Attention module(4);
  for (const auto format : {WeightFormat::safetensors, WeightFormat::torchscript}) {
    save_weights(*module, path_, SaveOptions().format(format));
    const auto tensors = read_weights(path_);
    ASSERT_EQ(tensors.size(), 6);
    for (const auto& item : module->named_parameters()) {
      EXPECT_TRUE(tensors.at(item.key()).equal(item.value())) << item.key();
    }
  }
  std::filesystem::remove(path_);
  EXPECT_EQ(value_error([&] { read_weights(path_); }),
            "read_weights: path (" + path_ + ") must name an existing file");
}

/// The name that an error advises is there.
TEST_F(Weights, ThatAreReadNameTheNearest) {
  save_weights({{"attn.fc_q.weight", at::ones({1})},
                {"attn.fc_q.bias", at::ones({2})},
                {"emb.weight", at::ones({3})},
                {"a\"b", at::ones({4})}},
               path_);
  auto tensors = read_weights(path_);
  const auto error = [&](const std::string& name) {
    const auto text = value_error([&] { tensors.at(name); });
    EXPECT_EQ(value_error([&] { std::as_const(tensors).at(name); }), text);
    return text;
  };
  const auto start = [](const std::string& name) {
    return "NamedTensors::at: name \"" + name + "\" must be one of the 4 names; ";
  };
  EXPECT_EQ(error("fc_q.weight"),
            start("fc_q.weight") + "nearest: \"attn.fc_q.weight\", \"emb.weight\"");
  EXPECT_EQ(tensors.at("attn.fc_q.weight").size(0), 1);
  EXPECT_EQ(error("attn.fc_q"),
            start("attn.fc_q") + "nearest: \"attn.fc_q.bias\", \"attn.fc_q.weight\"");
  EXPECT_EQ(error("model.attn.fc_q.bias"),
            start("model.attn.fc_q.bias") + "nearest: \"attn.fc_q.bias\"");
  EXPECT_EQ(error("attn.layer_norm_of_the_output"),
            start("attn.layer_norm_of_the_output") +
                "among them: \"attn.fc_q.bias\", \"attn.fc_q.weight\"");
  EXPECT_EQ(error("x"), start("x") +
                            "among them: \"a\\x22b\", \"attn.fc_q.bias\", "
                            "\"attn.fc_q.weight\"");
  for (const auto* name : {".", "..", "a.", ""}) EXPECT_EQ(error(name).find(start(name)), 0U);
  EXPECT_EQ(value_error([] { NamedTensors().at("x"); }),
            "NamedTensors::at: name \"x\" must be one of the 0 names");
}

/// Code that was written for a std::map goes on.
TEST_F(Weights, AreReadIntoAnyMap) {
  save({{"x", at::ones({1})}});
  std::map<std::string, at::Tensor> map = read_weights(path_);
  const NamedTensors tensors = map;
  EXPECT_EQ(tensors.at("x").size(0), 1);
  EXPECT_EQ(map.at("x").size(0), 1);
  const auto [name, tensor] = *tensors.begin();
  EXPECT_EQ(name, "x");
  NamedTensors others{{"a", tensor}};
  others = {{"b", tensor}, {"c", tensor}};
  others["d"] = tensor;
  EXPECT_EQ(others.size(), 3U);
}

}  // namespace
}  // namespace heed::test
