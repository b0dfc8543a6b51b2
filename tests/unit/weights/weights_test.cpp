#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <heed/attention.h>
#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/transformer.h>
#include <heed/weights.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/pickles.h"
#include "support/seeds.h"
#include "support/warnings.h"
#include "weights/misfits.h"

namespace heed::test {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Tensors = torch::OrderedDict<std::string, at::Tensor>;

/// Tensors in nested TorchScript modules, by dotted name.
torch::jit::Module script_module(const std::string& name, const Tensors& parameters,
                                 const Tensors& buffers) {
  torch::jit::Module module(c10::QualifiedName("__torch__." + name));
  std::map<std::string, std::pair<Tensors, Tensors>> children;
  const auto split = [](const std::string& key) {
    const auto dot = key.find('.');
    return std::pair(key.substr(0, dot), key.substr(dot + 1));
  };
  for (const auto& item : parameters) {
    const auto [child, rest] = split(item.key());
    if (rest == item.key()) {
      module.register_parameter(rest, item.value().detach(), /*is_buffer=*/false);
    } else {
      children[child].first.insert(rest, item.value());
    }
  }
  for (const auto& item : buffers) {
    const auto [child, rest] = split(item.key());
    if (rest == item.key()) {
      module.register_buffer(rest, item.value());
    } else {
      children[child].second.insert(rest, item.value());
    }
  }
  for (const auto& [child, tensors] : children) {
    module.register_module(child, script_module(name + "_" + child, tensors.first, tensors.second));
  }
  return module;
}

Tensors copies(const Tensors& tensors) {
  Tensors result;
  for (const auto& item : tensors) result.insert(item.key(), item.value().detach().clone());
  return result;
}

Tensors random_like(const Tensors& tensors) {
  auto result = copies(tensors);
  for (auto& item : result) item.value() = uniform(item.value().sizes(), item.value().dtype());
  return result;
}

void expect_equal(const Tensors& actual, const Tensors& expected) {
  EXPECT_EQ(actual.keys(), expected.keys());
  for (const auto& item : expected) {
    const auto& tensor = actual[item.key()];
    EXPECT_TRUE(tensor.equal(item.value().to(tensor.device()))) << item.key();
  }
}

class Weights : public ::testing::Test {
 protected:
  Weights() {
    torch::manual_seed(moved(13));
    auto unique = ::testing::TempDir() + "heed_weights_XXXXXX";
    directory_ = ::mkdtemp(unique.data());
    path_ = directory_ / "weights.pt";
  }
  ~Weights() override { std::filesystem::remove_all(directory_); }

  void save(const Tensors& parameters, const Tensors& buffers = Tensors()) const {
    script_module("Saved", parameters, buffers).save(path_);
  }

  void write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }

  std::string load_error(torch::nn::Module& module, const LoadOptions& options = {}) const {
    return value_error([&] { load_weights(module, path_, options); });
  }

  std::filesystem::path directory_;
  std::string path_;
};

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
      expect_equal(module->named_parameters(), saved);
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
  expect_equal(model->named_parameters(), parameters);
  expect_equal(model->named_buffers(), buffers);
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
  expect_equal(module->named_parameters(), saved->named_parameters());
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
  expect_equal(module->named_parameters(), before);
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
  expect_equal(module->named_parameters(), expected);
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

TEST_F(Weights, MissingNamesAreListedWithOnlySimilarNames) {
  AttentionV1 module(2);
  save({{"qvk.weight", at::ones({6, 2})}, {"zzz.z", at::ones({6})}});
  EXPECT_EQ(load_error(*module), "load_weights: path (" + path_ +
                                     ") must fit the module, 0 of whose 2 tensors do\n"
                                     "  missing: qkv.weight (nearest in the file: qvk.weight)\n"
                                     "  missing: qkv.bias\n"
                                     "  unexpected: qvk.weight\n"
                                     "  unexpected: zzz.z\n"
                                     "  LoadOptions that may help: name_map");
  save({{"qkv.weight", at::ones({6, 2})}});
  EXPECT_EQ(load_error(*module),
            "load_weights: path (" + path_ +
                ") must fit the module, 1 of whose 2 tensors do\n  missing: qkv.bias");
}

TEST_F(Weights, MisfitsAreShownByTheFilesOwnNamesAndShapes) {
  Attention module(4);
  save({{"model.c_q.weight", at::ones({4, 8})},
        {"model.c_q.bias", at::ones({4})},
        {"model.c_k.weight", at::ones({4, 4})},
        {"model.c_k.bias", at::ones({4})},
        {"model.c_v.weight", at::ones({4, 4})},
        {"model.c_v.bias", at::ones({4})}});
  const auto names =
      NameMap().transpose("c_q", "fc_q").rename("c_k", "fc_key").rename("c_v", "fc_v");
  const auto options = LoadOptions().prefix("model.").name_map(names);
  EXPECT_EQ(load_error(*module, options),
            "load_weights: path (" + path_ +
                ") must fit the module, 3 of whose 6 tensors do\n"
                "  missing: fc_k.weight (nearest in the file: model.c_k.weight)\n"
                "  missing: fc_k.bias (nearest in the file: model.c_k.bias)\n"
                "  unexpected: model.c_k.bias (by the name map fc_key.bias)\n"
                "  unexpected: model.c_k.weight (by the name map fc_key.weight)\n"
                "  misshapen: fc_q.weight (Float [4, 4] in the module, Float [4, 8] in the file: "
                "model.c_q.weight, by the name map [8, 4])\n"
                "  LoadOptions that may help: name_map");
  EXPECT_THAT(load_weights(*module, path_, LoadOptions(options).strict(false)).unexpected,
              ElementsAre("model.c_k.bias", "model.c_k.weight"));
}

TEST_F(Weights, MisfitsSayWhichOptionsMayHelp) {
  AttentionV1 module(2);
  const auto start =
      "load_weights: path (" + path_ + ") must fit the module, 0 of whose 2 tensors do\n";
  save({{"encoder.qkv.weight", at::ones({6, 2})}, {"encoder.qkv.bias", at::ones({6})}});
  EXPECT_EQ(load_error(*module), start +
                                     "  missing: qkv.weight\n"
                                     "  missing: qkv.bias\n"
                                     "  unexpected: encoder.qkv.bias\n"
                                     "  unexpected: encoder.qkv.weight\n"
                                     "  LoadOptions that may help: prefix (\"encoder.\")");
  save({{"qkv.weight", at::ones({2, 6})}, {"qkv.bias", at::ones({6}, at::kDouble)}});
  EXPECT_EQ(load_error(*module),
            start +
                "  misshapen: qkv.weight (Float [6, 2] in the module, Float [2, 6] in the file)\n"
                "  misshapen: qkv.bias (Float [6] in the module, Double [6] in the file)\n"
                "  LoadOptions that may help: name_map, dtype (Float)");
}

TEST_F(Weights, MisfitsOfEqualLayersAreOneLine) {
  const auto block = TransformerBlockOptions(GroupQueryAttentionOptions(4, 2, 2));
  auto without_biases = block;
  save_weights(*Encoder(EncoderOptions(without_biases.norm_bias(false), 3).final_norm(false)),
               path_);
  EXPECT_EQ(load_error(*Encoder(EncoderOptions(block, 3))),
            "load_weights: path (" + path_ +
                ") must fit the module, 42 of whose 50 tensors do\n"
                "  missing: blocks.{0..2}.attention_norm.bias\n"
                "  missing: blocks.{0..2}.feed_forward_norm.bias\n"
                "  missing: final_norm.weight\n"
                "  missing: final_norm.bias");
}

TEST(Misfits, FoldTheFirstNumberOfAName) {
  detail::Misfits misfits;
  EXPECT_EQ(detail::describe(misfits), "");
  misfits.missing = {"h.0.w", "h.1.w", "h.10.w", "h.3.w", "h.x.w", "0.w", "w.0", "w1.b", "w2.b"};
  EXPECT_EQ(detail::describe(misfits),
            "\n  missing: h.{0..1,3,10}.w\n  missing: h.x.w\n  missing: 0.w\n  missing: w.0"
            "\n  missing: w1.b\n  missing: w2.b");
  // A name with two numbers, layer and expert, is folded over the layers only. Names of the file
  // are folded where their numbers are those of the module's.
  misfits.missing = {"h.0.e.1.w", "h.1.e.1.w"};
  misfits.misshapen = {"h.0.w (Float [4] in the module, Float [8] in the file: l.0.w)",
                       "h.1.w (Float [4] in the module, Float [8] in the file: l.1.w)",
                       "h.2.w (Float [4] in the module, Float [8] in the file: l.0.w)"};
  EXPECT_EQ(detail::describe(misfits),
            "\n  missing: h.{0..1}.e.1.w"
            "\n  misshapen: h.{0..1}.w (Float [4] in the module, Float [8] in the file: l.{0..1}.w)"
            "\n  misshapen: h.2.w (Float [4] in the module, Float [8] in the file: l.0.w)");
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

TEST_F(Weights, NeedAFile) {
  Attention module(2);
  for (const auto& path : {directory_ / "absent.pt", std::filesystem::path()}) {
    EXPECT_EQ(value_error([&] { load_weights(*module, path); }),
              "load_weights: path (" + path.string() + ") must name an existing file");
  }
  EXPECT_EQ(value_error([&] { load_weights(*module, directory_); }),
            "load_weights: path (" + directory_.string() + ") must name a file; it is a folder");
}

TEST_F(Weights, NeedAFileOfAKnownFormat) {
  Attention module(2);
  const auto before = copies(module->named_parameters());
  const auto formats = "load_weights: path (" + path_ +
                       ") must be a safetensors file or its index, or what torch.save, "
                       "torch.export.save or torch.jit.save wrote; ";
  write("");
  EXPECT_EQ(load_error(*module), formats + "it is empty: write or download it again");
  write(std::string(1000, 'x'));
  EXPECT_EQ(load_error(*module), formats + "its 1000 bytes begin with \"xxxxxxxx\"");
  const auto pickled = torch::jit::pickle_save(at::ones({2, 2}));
  write({pickled.begin(), pickled.end()});
  EXPECT_EQ(load_error(*module), "load_weights: path (" + path_ +
                                     ") must hold a dict of tensors; it holds a tensor: save a "
                                     "dict that gives it a name instead");
  save(module->named_parameters());
  const auto size = std::filesystem::file_size(path_);
  std::filesystem::resize_file(path_, size / 2);
  EXPECT_EQ(
      load_error(*module),
      "load_weights: path (" + path_ +
          ") must be a sound PyTorch file; it must end with a zip archive's directory (size " +
          std::to_string(size / 2) + ")");
  expect_equal(module->named_parameters(), before);
}

/// Files that are often given instead of weights; after the advice is followed, weights load.
TEST_F(Weights, SayWhatAnotherFileIs) {
  Attention module(2);
  const auto weights = directory_ / "model.safetensors";
  save_weights(*module, weights);
  std::ifstream file(weights, std::ios::binary);
  const std::string safetensors(std::istreambuf_iterator<char>(file), {});
  const auto formats = "load_weights: path (" + path_ +
                       ") must be a safetensors file or its index, or what torch.save, "
                       "torch.export.save or torch.jit.save wrote; ";
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid "
      "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
  const auto lfs =
      "it is a pointer of Git LFS, which stands for the file: run git lfs pull in its folder";
  write(pointer);
  EXPECT_EQ(load_error(*module), formats + lfs);
  write(safetensors);  // as git lfs pull does
  EXPECT_EQ(load_weights(*module, path_).loaded.size(), 6U);
  for (const auto* page : {"<!DOCTYPE html><html>", "\n <html lang=\"en\">", "<!doctype HTML>"}) {
    write(page);
    EXPECT_EQ(load_error(*module),
              formats +
                  "it is an HTML page: download the file itself, whose address on "
                  "huggingface.co has /resolve/ where that of its page has /blob/");
  }
  write("GGUF\3" + std::string(100, '\0'));
  EXPECT_EQ(load_error(*module),
            formats +
                "it is a GGUF file, which llama.cpp reads: pass the model's safetensors, of "
                "which it was made");
  write(pickles::flat_zip({{"model.safetensors", safetensors}}));
  EXPECT_EQ(load_error(*module),
            formats + "it is a zip archive of other files, \"model.safetensors\": unpack it");
  EXPECT_EQ(load_weights(*module, weights).loaded.size(), 6U);
  write(pickles::flat_zip({{"a.npy", "1"}, {"b.npy", "2"}, {"c.npy", "3"}, {"d.npy", "4"}}));
  EXPECT_EQ(load_error(*module), formats +
                                     "it is a zip archive of other files, \"a.npy\", \"b.npy\", "
                                     "\"c.npy\", ...: in Python, "
                                     "safetensors.numpy.save_file(dict(numpy.load(path)), "
                                     "\"weights.safetensors\") makes a file of NumPy's arrays that "
                                     "heed reads");
  // A clone without Git LFS has the index itself, and pointers beside it.
  write(R"({"weight_map": {"fc_q.weight": "model.safetensors"}})");
  std::ofstream(weights, std::ios::binary) << pointer;
  EXPECT_EQ(load_error(*module), "load_weights: path (" + path_ +
                                     ") must be a sound safetensors index file; weight_map: "
                                     "\"model.safetensors\" must be a safetensors file; " +
                                     lfs);
  EXPECT_EQ(value_error([&] { read_weights(directory_); }),
            "read_weights: path (" + directory_.string() +
                ") must name a file; it is a folder, whose weights are " + weights.string());
}

TEST_F(Weights, NeedAnArchiveThatIsNotFrozen) {
  Attention module(2);
  torch::jit::Module scripted(c10::QualifiedName("__torch__.Frozen"));
  scripted.register_parameter("weight", at::ones({2}), /*is_buffer=*/false);
  scripted.define("def forward(self, x):\n  return self.weight * x\n");
  scripted.eval();
  torch::jit::freeze(scripted).save(path_);
  for (const bool strict : {true, false}) {
    EXPECT_EQ(load_error(*module, LoadOptions().strict(strict)),
              "load_weights: path (" + path_ +
                  ") must hold weights by name; those of a frozen module (torch.jit.freeze, "
                  "optimize_for_inference) are constants of its code: export the module before it "
                  "is frozen");
  }
}

}  // namespace
}  // namespace heed::test
