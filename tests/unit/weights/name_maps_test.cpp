// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attention.h>
#include <heed/decoder.h>
#include <heed/multi_head_attention.h>
#include <heed/name_maps.h>
#include <heed/residual_attention.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"

namespace heed::test {
namespace {

std::vector<std::string> names(const NamedTensors& tensors) {
  std::vector<std::string> result;
  for (const auto& item : tensors) result.push_back(item.first);
  return result;
}

/// Weights and biases of square Linear layers.
NamedTensors linears(const std::vector<std::string>& modules, int64_t width = 4) {
  NamedTensors tensors;
  for (const auto& module : modules) {
    tensors[module + ".weight"] = uniform({width, width}, at::kFloat);
    tensors[module + ".bias"] = uniform({width}, at::kFloat);
  }
  return tensors;
}

/// Every name of the module, and no other, with the module's shapes.
void expect_fits(const NamedTensors& tensors, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    const auto found = tensors.find(item.key());
    ASSERT_NE(found, tensors.end()) << item.key();
    EXPECT_EQ(found->second.sizes(), item.value().sizes()) << item.key();
  }
  EXPECT_EQ(tensors.size(), module.named_parameters().size());
}

TEST(NameMaps, CoverEverySpelling) {
  const MultiHeadAttention module(4, 2);
  expect_fits(name_maps::w_q_w_o().apply(linears({"W_q", "W_k", "W_v", "W_o"}), *module), *module);
  expect_fits(name_maps::w_q_fc().apply(linears({"W_Q", "W_K", "W_V", "fc"}), *module), *module);
  expect_fits(name_maps::q_linear_out().apply(linears({"q_linear", "k_linear", "v_linear", "out"}),
                                              *module),
              *module);
  expect_fits(
      name_maps::q_proj().apply(linears({"q_proj", "k_proj", "v_proj", "out_proj"}), *module),
      *module);
  const Attention attention(4);
  for (const auto* value : {"value_proj", "valye_proj"}) {
    const auto mapped =
        name_maps::query_proj().apply(linears({"query_proj", "key_proj", value}), *attention);
    expect_fits(mapped, *attention);
  }
  const ResidualAttention residual(ResidualAttentionOptions(
      MultiHeadAttentionOptions(4, 2).output_bias(false).input_bias(false)));
  NamedTensors theirs = {{"layer_norm.weight", uniform({4}, at::kFloat)},
                         {"layer_norm.bias", uniform({4}, at::kFloat)}};
  for (const auto* name : {"w_qs", "w_ks", "w_vs", "fc"}) {
    theirs[std::string(name) + ".weight"] = uniform({4, 4}, at::kFloat);
  }
  expect_fits(name_maps::w_qs_fc().apply(theirs, *residual), *residual);
  const AttentionV1 packed(4);
  const NamedTensors projection = {{"proj.weight", uniform({12, 4}, at::kFloat)},
                                   {"proj.bias", uniform({12}, at::kFloat)}};
  expect_fits(name_maps::proj().apply(projection, *packed), *packed);
}

TEST(NameMaps, SplitByTheModulesSizes) {
  const MultiHeadAttention module(MultiHeadAttentionOptions(4, 2).value_head_dim(3));
  auto theirs = linears({"out_proj"});
  theirs["in_proj_weight"] = uniform({4 + 4 + 6, 4}, at::kFloat);
  theirs["in_proj_bias"] = uniform({4 + 4 + 6}, at::kFloat);
  const auto mapped = name_maps::in_proj().apply(theirs, *module);
  EXPECT_TRUE(mapped.at("fc_k.weight").equal(theirs["in_proj_weight"].narrow(0, 4, 4)));
  EXPECT_TRUE(mapped.at("fc_v.bias").equal(theirs["in_proj_bias"].narrow(0, 8, 6)));

  const MultiHeadAttention square(4, 2);
  auto tutorial = linears({"out_proj"});
  tutorial["packed_proj.weight"] = uniform({12, 4}, at::kFloat);
  tutorial["packed_proj.bias"] = uniform({12}, at::kFloat);
  expect_fits(name_maps::packed_proj().apply(tutorial, *square), *square);

  const MultiHeadAttention wide(MultiHeadAttentionOptions(4, 2).key_emb_dim(3).value_emb_dim(5));
  auto separate = linears({"out_proj"});
  separate["q_proj_weight"] = uniform({4, 4}, at::kFloat);
  separate["k_proj_weight"] = uniform({4, 3}, at::kFloat);
  separate["v_proj_weight"] = uniform({4, 5}, at::kFloat);
  separate["in_proj_bias"] = uniform({12}, at::kFloat);
  expect_fits(name_maps::in_proj_separate().apply(separate, *wide), *wide);
}

TEST(NameMaps, PackAndTranspose) {
  const AttentionV1 module(4);
  const auto theirs = linears({"q", "k", "v"});
  const auto mapped = NameMap().pack({"q", "k", "v"}, "qkv").apply(theirs, *module);
  expect_fits(mapped, *module);
  EXPECT_TRUE(mapped.at("qkv.bias")
                  .equal(at::cat({theirs.at("q.bias"), theirs.at("k.bias"), theirs.at("v.bias")})));
  const auto transposed = NameMap().transpose("q", "fc_q").apply(theirs, *module);
  EXPECT_TRUE(transposed.at("fc_q.weight").equal(theirs.at("q.weight").t()));
  EXPECT_TRUE(transposed.at("fc_q.bias").equal(theirs.at("q.bias")));
  EXPECT_TRUE(transposed.at("k.bias").equal(theirs.at("k.bias")));
}

/// Rows of a packed projection as GPT-NeoX has them: [heads, query or key or value, D].
TEST(NameMaps, SplitHeadByHead) {
  const MultiHeadAttention module(6, 3);
  auto theirs = linears({"dense"}, 6);
  theirs["qkv.weight"] = uniform({18, 6}, at::kFloat);
  theirs["qkv.bias"] = uniform({18}, at::kFloat);
  const auto map =
      NameMap().split_heads("qkv", {"fc_q", "fc_k", "fc_v"}, 3).rename("dense", "fc_out");
  const auto mapped = map.apply(theirs, *module);
  expect_fits(mapped, *module);
  const auto heads = theirs.at("qkv.weight").view({3, 3, 2, 6});
  EXPECT_TRUE(mapped.at("fc_q.weight").equal(heads.select(1, 0).reshape({6, 6})));
  EXPECT_TRUE(mapped.at("fc_v.weight").equal(heads.select(1, 2).reshape({6, 6})));
  const auto biases = theirs.at("qkv.bias").view({3, 3, 2});
  EXPECT_TRUE(mapped.at("fc_k.bias").equal(biases.select(1, 1).reshape({6})));
}

/// Matrices of three modules in one tensor, transposed, their rows in turns: column 0 of a slice is
/// row 0 of the first, column 1 row 0 of the second.
TEST(NameMaps, UnstackModulesOfAList) {
  const torch::nn::ModuleList list(MultiHeadAttention(4, 2), MultiHeadAttention(4, 2),
                                   MultiHeadAttention(4, 2));
  torch::nn::ModuleDict module;
  module->update({{"list", list.ptr()}, {"other", MultiHeadAttention(4, 2).ptr()}});
  const auto transposed = StackLayout().transposed(true);
  const auto in_turns = StackLayout(transposed).interleaved(true);
  const auto map = NameMap()
                       .unstack("qk", "list", {"fc_q.weight", "fc_k.weight"}, in_turns)
                       .unstack("qk_bias", "list", {"fc_q.bias", "fc_k.bias"}, in_turns)
                       .unstack("v.weight", "list", {"fc_v.weight"}, transposed)
                       .unstack("v.bias", "list", {"fc_v.bias"}, transposed)
                       .unstack("out", "list", {"fc_out"});
  auto theirs = linears({"other.fc_q", "other.fc_k", "other.fc_v", "other.fc_out"});
  theirs["qk"] = uniform({3, 4, 8}, at::kFloat);
  theirs["qk_bias"] = uniform({3, 8}, at::kFloat);
  theirs["v.weight"] = uniform({3, 4, 4}, at::kFloat);
  theirs["v.bias"] = uniform({3, 4}, at::kFloat);
  theirs["out.weight"] = uniform({3, 4, 4}, at::kFloat);
  theirs["out.bias"] = uniform({3, 4}, at::kFloat);
  const auto mapped = map.apply(theirs, *module);
  expect_fits(mapped, *module);
  for (int64_t i = 0; i < 3; ++i) {
    const auto own = "list." + std::to_string(i) + ".";
    const auto pairs = theirs["qk"][i].reshape({4, 4, 2});
    EXPECT_TRUE(mapped.at(own + "fc_q.weight").equal(pairs.select(2, 0).t()));
    EXPECT_TRUE(mapped.at(own + "fc_k.weight").equal(pairs.select(2, 1).t()));
    EXPECT_TRUE(
        mapped.at(own + "fc_k.bias").equal(theirs["qk_bias"][i].reshape({4, 2}).select(1, 1)));
    EXPECT_TRUE(mapped.at(own + "fc_v.weight").equal(theirs["v.weight"][i].t()));
    EXPECT_TRUE(mapped.at(own + "fc_v.bias").equal(theirs["v.bias"][i]));
    EXPECT_TRUE(mapped.at(own + "fc_out.weight").equal(theirs["out.weight"][i]));
  }
  EXPECT_TRUE(mapped.at("other.fc_q.weight").equal(theirs["other.fc_q.weight"]));
  {
    const at::NoGradGuard no_grad;
    for (const auto& item : module->named_parameters()) item.value().copy_(mapped.at(item.key()));
  }
  const auto back = map.invert(*module);
  ASSERT_EQ(names(back), names(theirs));
  for (const auto& [name, tensor] : theirs) EXPECT_TRUE(back.at(name).equal(tensor)) << name;
  const auto inside = NameMap().submodule("in", map);
  torch::nn::ModuleDict outer;
  outer->update({{"in", module.ptr()}});
  EXPECT_EQ(names(inside.invert(*outer)), names(theirs));
  expect_fits(inside.apply(theirs, *outer), *outer);
}

TEST(NameMaps, ThatUnstackNameWhatDoesNotFit) {
  torch::nn::ModuleDict module;
  const torch::nn::ModuleList list(torch::nn::Linear(4, 5), torch::nn::Linear(4, 5));
  module->update({{"list", list.ptr()}});
  const auto map = [](const StackLayout& layout) {
    return NameMap().unstack("all", "list", {"weight"}, layout);
  };
  const auto error = [&](at::IntArrayRef sizes, const StackLayout& layout = {}) {
    return value_error([&] {
      map(layout).apply({{"all", uniform(sizes.vec(), at::kFloat)}}, *module);
    });
  };
  EXPECT_EQ(error({3, 5, 4}), "name map: all -> weight: the module holds no list.2.weight");
  EXPECT_EQ(error({2, 4, 4}), "name map: all -> weight: all [2, 4, 4] must have slices of 5 rows");
  EXPECT_EQ(error({2}), "name map: all -> weight: all [2] must have slices of 5 rows");
  EXPECT_EQ(error({2, 5, 4}, StackLayout().transposed(true)),
            "name map: all -> weight: all [2, 5, 4] must have slices of 5 rows that are "
            "transposed");
  EXPECT_EQ(value_error([&] { map({}).apply({}, *module); }),
            "name map: all -> weight: the file holds no all");
  torch::nn::ModuleDict uneven;
  const torch::nn::ModuleList other(torch::nn::Linear(4, 5), torch::nn::Linear(4, 6));
  uneven->update({{"list", other.ptr()}});
  EXPECT_EQ(value_error([&] { map({}).invert(*uneven); }),
            "name map: all -> weight: list.1.weight [6, 4] must equal list.0.weight [5, 4]");
  EXPECT_EQ(value_error([&] {
              NameMap().unstack("all", "list", {"weight", "x"}).invert(*module);
            }),
            "name map: all -> weight, x: the module holds no list.0.x");
}

TEST(NameMaps, PutDimensionsBeforeThoseOfTheFile) {
  struct Module : torch::nn::Module {
    Module() { register_parameter("token", at::zeros({1, 1, 4})); }
  };
  const Module module;
  const NamedTensors theirs = {{"class", uniform({4}, at::kFloat)}};
  const auto map = NameMap().unsqueeze("class", "token", 2);
  const auto mapped = map.apply(theirs, module);
  EXPECT_TRUE(mapped.at("token").equal(theirs.at("class").view({1, 1, 4})));
  EXPECT_EQ(map.invert(module).at("class").sizes(), at::IntArrayRef({4}));
  EXPECT_EQ(value_error([&] { NameMap().unsqueeze("class", "token", 3).invert(module); }),
            "name map: class -> token: the first 3 of the dimensions of token [1, 1, 4] must be 1");
  EXPECT_EQ(value_error([] { NameMap().unsqueeze("class", "token", 0); }),
            "NameMap::unsqueeze: dims (0) must be at least 1");
}

TEST(NameMaps, MatchWholeComponentsAtAnyDepth) {
  const torch::nn::ModuleList layers(MultiHeadAttention(4, 2), MultiHeadAttention(4, 2));
  const auto theirs =
      linears({"0.W_q", "0.W_k", "0.W_v", "0.W_o", "1.W_q", "1.W_k", "1.W_v", "1.W_o"});
  expect_fits(name_maps::w_q_w_o().apply(theirs, *layers), *layers);
  const auto mapped =
      NameMap().rename("out", "fc_out").apply(linears({"out", "out_proj"}), *layers);
  EXPECT_EQ(names(mapped), std::vector<std::string>({"fc_out.bias", "fc_out.weight",
                                                     "out_proj.bias", "out_proj.weight"}));
}

/// The outermost module's name is empty.
TEST(NameMaps, RemoveAndAddOuterNames) {
  const MultiHeadAttention module(4, 2);
  const auto mapped = [&](const NameMap& map, const std::string& name) {
    return names(map.apply({{name, uniform({2}, at::kFloat)}}, *module)).at(0);
  };
  EXPECT_EQ(mapped(NameMap().rename("a.b.a", ""), "a.b.a.weight"), "weight");
  EXPECT_EQ(mapped(NameMap().rename("a", ""), "a.b.a.weight"), "b.a.weight");
  EXPECT_EQ(mapped(NameMap().rename("b", ""), "a.b.a.weight"), "a.a.weight");
  EXPECT_EQ(mapped(NameMap().rename("weight", ""), "a.b.a.weight"), "a.b.a");
  EXPECT_EQ(mapped(NameMap().inside("a", ""), "a.b.weight"), "b.weight");
  EXPECT_EQ(mapped(NameMap().transpose("a", ""), "a.weight"), "weight");
  EXPECT_EQ(mapped(NameMap().rename("", "x.y"), "a.weight"), "x.y.a.weight");
  EXPECT_EQ(mapped(NameMap().inside("", "x"), "a.weight"), "x.a.weight");
  EXPECT_EQ(mapped(NameMap().rename("", ""), "a.weight"), "a.weight");
  const auto rest = NameMap().rename("a", "b").rename("", "x").apply(linears({"a", "c"}), *module);
  EXPECT_EQ(names(rest),
            std::vector<std::string>({"b.bias", "b.weight", "x.c.bias", "x.c.weight"}));
  EXPECT_EQ(value_error([&] { mapped(NameMap().rename("a.b", ""), "a.b"); }),
            "name map: a.b -> : a tensor must keep a name");
  EXPECT_EQ(value_error([&] { mapped(NameMap().inside("a.b", ""), "a.b"); }),
            "name map: names kept: a tensor must keep a name");
}

TEST(NameMaps, LeaveOutWhatTheModuleHasNoPlaceFor) {
  const MultiHeadAttention module(4, 2);
  const auto map = NameMap().drop("pooler").drop("position_ids").rename("out", "fc_out");
  const auto mapped = map.apply(linears({"pooler.dense", "poolers", "1.out"}), *module);
  EXPECT_EQ(names(mapped), std::vector<std::string>({"1.fc_out.bias", "1.fc_out.weight",
                                                     "poolers.bias", "poolers.weight"}));
}

/// nn.MultiheadAttention(bias=False) has no in_proj_bias, and neither has the module.
TEST(NameMaps, PassOverBiasesThatNobodyHas) {
  const MultiHeadAttention module(
      MultiHeadAttentionOptions(4, 2).input_bias(false).output_bias(false));
  const NamedTensors packed = {{"in_proj_weight", uniform({12, 4}, at::kFloat)},
                               {"out_proj.weight", uniform({4, 4}, at::kFloat)}};
  expect_fits(name_maps::in_proj().apply(packed, *module), *module);
  const NamedTensors separate = {{"q_proj_weight", uniform({4, 4}, at::kFloat)},
                                 {"k_proj_weight", uniform({4, 4}, at::kFloat)},
                                 {"v_proj_weight", uniform({4, 4}, at::kFloat)},
                                 {"out_proj.weight", uniform({4, 4}, at::kFloat)}};
  expect_fits(name_maps::in_proj_separate().apply(separate, *module), *module);
  // A module with biases misses them.
  EXPECT_EQ(value_error([&] { name_maps::in_proj().apply(packed, *MultiHeadAttention(4, 2)); }),
            "name map: in_proj_bias -> fc_q.bias, fc_k.bias, fc_v.bias: the file holds no "
            "in_proj_bias");
}

/// Files of tied models hold the head as well: torch.save writes all of model.state_dict().
TEST(NameMaps, LeaveOutAHeadThatIsTheEmbedding) {
  const MultiHeadAttention without_head(4, 2);
  const auto embedding = uniform({5, 4}, at::kFloat);
  const auto map = NameMap().tied("lm_head", {"transformer.wte", "wte"});
  const auto mapped = [&](const at::Tensor& head) {
    return map.apply({{"wte.weight", embedding}, {"lm_head.weight", head}}, *without_head);
  };
  EXPECT_EQ(names(mapped(embedding)), std::vector<std::string>({"wte.weight"}));
  EXPECT_EQ(names(mapped(embedding.clone())), std::vector<std::string>({"wte.weight"}));
  EXPECT_EQ(value_error([&] { mapped(embedding + 1); }),
            "name map: lm_head -> transformer.wte, wte: lm_head.weight must equal wte.weight, to "
            "which it is tied in the module");
  torch::nn::ModuleDict with_head;
  with_head->update({{"lm_head", torch::nn::Linear(4, 5).ptr()}});
  EXPECT_EQ(
      names(map.apply({{"wte.weight", embedding}, {"lm_head.weight", embedding + 1}}, *with_head)),
      std::vector<std::string>({"lm_head.weight", "wte.weight"}));
}

NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value().detach();
  return tensors;
}

void expect_equal(const NamedTensors& actual, const NamedTensors& expected) {
  ASSERT_EQ(names(actual), names(expected));
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(actual.at(name).equal(tensor)) << name;
}

/// A tied Decoder under GPT-2's names: transposed, split, led through other modules, tied.
/// A map of a part, whose paths and names that no entry uses stay in the part.
TEST(NameMaps, OfASubmodule) {
  torch::nn::ModuleDict module;
  module->update({{"model", Attention(4).ptr()}});
  module->update({{"fc_q", torch::nn::Linear(4, 4).ptr()}});
  const auto part = NameMap().rename("self.query", "fc_q").inside("self", "").drop("fc_q");
  const auto map = NameMap().rename("head", "fc_q").submodule("model", part);
  const auto file = linears({"head", "self.query", "self.fc_k", "self.fc_v"});
  auto ours = map.apply(file, *module);
  expect_fits(ours, *module);
  EXPECT_TRUE(ours["fc_q.weight"].equal(file.at("head.weight")));
  EXPECT_TRUE(ours["model.fc_q.weight"].equal(file.at("self.query.weight")));
  EXPECT_TRUE(ours["model.fc_k.bias"].equal(file.at("self.fc_k.bias")));
  EXPECT_EQ(value_error([&] { NameMap().submodule("", part); }),
            "NameMap::submodule: ours must not be empty");
  EXPECT_EQ(value_error([&] { NameMap().submodule("a", map); }),
            "NameMap::submodule: ours (a) must be the only submodule of the map; it has model");
}

TEST(NameMaps, OfASubmoduleAreTurnedAround) {
  torch::nn::ModuleDict module;
  module->update({{"model", Attention(4).ptr()}});
  module->update({{"classifier", torch::nn::Linear(4, 2).ptr()}});
  const auto part = NameMap().rename("query", "fc_q").inside("keys", "fc_k").drop("pooler");
  const auto map = NameMap().rename("score", "classifier").submodule("model", part);
  const auto theirs = map.invert(*module);
  EXPECT_EQ(names(theirs),
            (std::vector<std::string>{"fc_v.bias", "fc_v.weight", "keys.bias", "keys.weight",
                                      "query.bias", "query.weight", "score.bias", "score.weight"}));
  expect_fits(map.apply(theirs, *module), *module);
}

TEST(NameMaps, AreTurnedAround) {
  const Decoder model(
      DecoderOptions(11, TransformerBlockOptions(GroupQueryAttentionOptions(8, 2, 2)), 2)
          .positions(PositionEmbeddingOptions(8)));
  const auto gpt2 = name_maps::gpt2().invert(*model);
  const auto weight = [](const auto& linear) { return linear->weight.detach(); };
  const auto& block = *model->stack->blocks->template ptr<TransformerBlockImpl>(1);
  const auto& attention = block.attention;
  EXPECT_TRUE(gpt2.at("transformer.h.1.attn.c_attn.weight")
                  .equal(at::cat({weight(attention->fc_q), weight(attention->fc_k),
                                  weight(attention->fc_v)})
                             .t()));
  EXPECT_TRUE(
      gpt2.at("transformer.h.1.mlp.c_fc.weight").equal(weight(block.feed_forward->fc_in).t()));
  EXPECT_TRUE(gpt2.at("transformer.ln_f.bias").equal(model->stack->final_norm->bias.detach()));
  EXPECT_TRUE(gpt2.at("lm_head.weight").equal(gpt2.at("transformer.wte.weight")));
  expect_equal(name_maps::gpt2().apply(gpt2, *model), tensors_of(*model));

  const MultiHeadAttention module(4, 2);
  for (const auto& map : {NameMap(), NameMap().rename("a", ""), name_maps::in_proj(),
                          NameMap().split_heads("x", {"fc_v", "fc_q", "fc_k"}, 2),
                          NameMap().rename_any({"one", "other"}, "fc_q").drop("pooler"),
                          NameMap().rename("a", "").rename("W_o", "fc_out")}) {
    const auto theirs = map.invert(*module);
    EXPECT_EQ(theirs.count("pooler"), 0U);
    EXPECT_EQ(theirs.count("other.weight"), 0U);
    expect_equal(map.apply(theirs, *module), tensors_of(*module));
  }
  module->fc_q->weight.detach().fill_(std::nan(""));  // bits count, not values
  EXPECT_EQ(name_maps::w_q_w_o().invert(*module).count("W_q.weight"), 1U);
}

TEST(NameMaps, ThatCannotBeTurnedAroundSaySo) {
  const MultiHeadAttention module(4, 2);
  const auto error = [&](const NameMap& map) { return value_error([&] { map.invert(*module); }); };
  EXPECT_EQ(error(NameMap().pack({"q", "k"}, "fc_q")),
            "name map: q, k -> fc_q: it cannot be turned around: how many rows of fc_q.weight are "
            "whose is not known");
  EXPECT_EQ(error(NameMap().split("in", {"fc_q", "fc_x"})),
            "name map: in -> fc_q, fc_x: the module holds no fc_x.weight");
  EXPECT_EQ(error(NameMap().split_heads("in", {"fc_q", "fc_k"}, 3)),
            "name map: in -> fc_q, fc_k: fc_q.weight [4, 4] must be the rows of 3 heads, as many "
            "as those of fc_q.weight");
  EXPECT_EQ(error(NameMap().rename("a", "fc_q").rename("a", "fc_k")),
            "name map: two tensors would be called a.weight");
  EXPECT_EQ(error(NameMap().inside("x", "fc_q").inside("fc_q", "y")),
            "name map: it cannot be turned around: fc_q.weight does not come back as it is");
}

TEST(NameMaps, NameTheEntryThatIsWrong) {
  const MultiHeadAttention module(4, 2);
  const auto error = [&](const NameMap& map, const NamedTensors& tensors) {
    return value_error([&] { map.apply(tensors, *module); });
  };
  EXPECT_EQ(error(NameMap().rename("W_q", "fc_q"), linears({"W_k"})),
            "name map: W_q -> fc_q: the file holds no W_q");
  EXPECT_EQ(error(NameMap().rename_any({"a", "b"}, "fc_q"), linears({"c"})),
            "name map: a, b -> fc_q: the file holds no a, b");
  EXPECT_EQ(error(NameMap().pack({"q", "k"}, "fc_q"), linears({"q"})),
            "name map: q, k -> fc_q: the file holds no k.bias");
  auto wide = linears({"k"});
  wide["q.weight"] = uniform({4, 7}, at::kFloat);
  EXPECT_EQ(error(NameMap().pack({"q", "k"}, "fc_q"), wide),
            "name map: q, k -> fc_q: k.weight [4, 4] must equal the others in all but dim 0");
  EXPECT_EQ(error(NameMap().split("in", {"fc_q", "fc_x"}), linears({"in"})),
            "name map: in -> fc_q, fc_x: the module holds no fc_x.bias");
  EXPECT_EQ(
      error(NameMap().split("in", {"fc_q", "fc_k"}), linears({"in"}, 6)),
      "name map: in -> fc_q, fc_k: in.bias [6] must have 8 rows, those of its parts together");
  EXPECT_EQ(error(NameMap().transpose_split("in", {"fc_q", "fc_k"}),
                  {{"in.weight", uniform({6, 4}, at::kFloat)}}),
            "name map: in -> fc_q, fc_k: in.weight [6, 4] must have 8 columns, those of its parts "
            "together");
  EXPECT_EQ(error(NameMap().split_heads("in", {"fc_q", "fc_k"}, 4), linears({"in"}, 6)),
            "name map: in -> fc_q, fc_k: in.bias [6] must have rows for 2 parts of 4 heads");
  EXPECT_EQ(value_error([] { NameMap().split_heads("in", {"fc_q"}, 0); }),
            "NameMap::split_heads: heads (0) must be at least 1");
  EXPECT_EQ(error(NameMap().rename("a", "fc_q").rename("b", "fc_q"), linears({"a", "b"})),
            "name map: b -> fc_q: fc_q.bias has been given a tensor already");
}

TEST(NameMaps, SayThatEntriesDoNotChain) {
  const MultiHeadAttention module(4, 2);
  const auto attention = NameMap().rename("attn", "attention");
  const auto error = [&](NameMap map, const std::string& theirs) {
    return value_error(
        [&] { map.rename(theirs, "fc_out").apply(linears({"attn.out_proj"}), *module); });
  };
  EXPECT_EQ(error(attention, "out_proj"),
            "name map: out_proj -> fc_out: an earlier entry, attn -> attention, has taken "
            "attn.out_proj.bias: entries do not chain");
  EXPECT_EQ(error(attention, "attention.out_proj"),
            "name map: attention.out_proj -> fc_out: the file holds no attention.out_proj.bias; an "
            "earlier entry, attn -> attention, has made it of attn.out_proj.bias: entries do not "
            "chain");
}

}  // namespace
}  // namespace heed::test
