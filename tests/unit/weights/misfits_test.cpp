// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <heed/attention.h>
#include <heed/decoder.h>
#include <heed/latent_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/name_maps.h>
#include <heed/residual_attention.h>
#include <heed/transformer.h>
#include <heed/weights.h>
#include <torch/nn/modules/container/moduledict.h>

#include <string>
#include <utility>

#include "support/weight_files.h"

// Each sentence of advice in an error of load_weights is followed, and the weights load.

namespace heed::test {
namespace {

class LoadAdvice : public WeightFiles {
 protected:
  std::string error(torch::nn::Module& module, const LoadOptions& options = {}) const {
    return value_error([&] { load_weights(module, path_, options); });
  }
  /// The advice of the error, which stands after the names that do not fit.
  std::string advice(torch::nn::Module& module, const LoadOptions& options = {}) const {
    const auto text = error(module, options);
    const auto begin = text.find(" that may help: ");
    return begin == std::string::npos ? text : text.substr(text.rfind('\n', begin) + 3);
  }
  /// Saves the module's weights in the names that `map` reads, with `prefix` before them.
  void save(const torch::nn::Module& module, const NameMap& map,
            const std::string& prefix = "") const {
    NamedTensors tensors;
    for (const auto& [name, tensor] : map.invert(module)) tensors[prefix + name] = tensor;
    save_weights(tensors, path_);
  }
  void expect_loads(torch::nn::Module& module, const LoadOptions& options) const {
    EXPECT_EQ(load_weights(module, path_, options).loaded.size(), module.named_parameters().size());
  }
  /// The error without a map advises `map`, and with it the weights load.
  void expect_advised(torch::nn::Module& module, const NameMap& map,
                      const std::string& expected) const {
    save(module, map);
    EXPECT_EQ(advice(module), "LoadOptions that may help: name_map (name_maps::" + expected + ")");
    expect_loads(module, LoadOptions().name_map(map));
  }
};

TransformerBlockOptions block_options() {
  return TransformerBlockOptions(GroupQueryAttentionOptions(8, 2, 2));
}

TransformerBlockOptions gated(NormPlacement placement = NormPlacement::pre) {
  auto options = block_options();
  options.attention().input_bias(false).output_bias(false);
  options.feed_forward().activation(Activation::swiglu).bias(false);
  return options.norm(NormKind::rms_norm).norm_placement(placement);
}

Decoder decoder(const TransformerBlockOptions& block, bool positions = false) {
  DecoderOptions options(/*vocab_size=*/11, EncoderOptions(block, 2).final_norm(true));
  if (positions) {
    options.positions(PositionEmbeddingOptions(8).kind(PositionKind::learned).max_length(16));
  }
  return Decoder(options);
}

TEST_F(LoadAdvice, OnNamesOfModels) {
  expect_advised(*decoder(gated()), name_maps::llama(), "llama(), for a Decoder");
  expect_advised(*decoder(gated()), name_maps::phi3(), "phi3(), for a Decoder");
  expect_advised(*decoder(gated(NormPlacement::sandwich)), name_maps::gemma2(),
                 "gemma2(), for a Decoder");
  expect_advised(*decoder(gated(NormPlacement::output)), name_maps::olmo2(),
                 "olmo2(), for a Decoder");
  expect_advised(*decoder(gated(NormPlacement::sandwich)), name_maps::gemma3(),
                 "gemma3(), for a Decoder");
  expect_advised(*decoder(gated(NormPlacement::sandwich)), name_maps::glm4(),
                 "glm4(), for a Decoder");
  expect_advised(*decoder(block_options()), name_maps::starcoder2(), "starcoder2(), for a Decoder");
  expect_advised(*decoder(block_options(), /*positions=*/true), name_maps::gpt2(),
                 "gpt2(), for a Decoder");
  expect_advised(*decoder(block_options(), /*positions=*/true), name_maps::nanogpt(),
                 "nanogpt(), for a Decoder");
  expect_advised(*decoder(block_options()), name_maps::gpt_neox(2),
                 "gpt_neox(heads), for a Decoder");
  expect_advised(*Encoder(EncoderOptions(block_options(), 2)), name_maps::transformer_encoder(),
                 "transformer_encoder(), for an Encoder");
  expect_advised(*Encoder(EncoderOptions(block_options().cross_attention(true), 2)),
                 name_maps::transformer_decoder(),
                 "transformer_decoder(), for an Encoder with cross-attention");
}

TEST_F(LoadAdvice, OnNamesOfAttentions) {
  const auto expect_of_heads = [&](const NameMap& map, const std::string& name) {
    expect_advised(*MultiHeadAttention(8, 2), map, name + "(), for a MultiHeadAttention");
  };
  expect_of_heads(name_maps::in_proj(), "in_proj");
  expect_of_heads(name_maps::w_q_w_o(), "w_q_w_o");
  expect_of_heads(name_maps::q_linear_out(), "q_linear_out");
  expect_of_heads(name_maps::w_q_fc(), "w_q_fc");
  expect_of_heads(name_maps::packed_proj(), "packed_proj");
  expect_of_heads(name_maps::q_proj(), "q_proj");
  expect_advised(*MultiHeadAttention(MultiHeadAttentionOptions(8, 2).key_emb_dim(6)),
                 name_maps::in_proj_separate(), "in_proj_separate(), for a MultiHeadAttention");
  expect_advised(*Attention(8), name_maps::query_proj(), "query_proj(), for an Attention");
  const auto latent =
      LatentAttentionOptions(8, 2, /*key_rank=*/4).plain_head_dim(4).rotary_head_dim(4);
  expect_advised(*LatentAttention(latent), name_maps::deepseek_attention(),
                 "deepseek_attention(), for a LatentAttention");
  const auto heads = MultiHeadAttentionOptions(8, 2).input_bias(false).output_bias(false);
  expect_advised(*ResidualAttention(ResidualAttentionOptions(heads)), name_maps::w_qs_fc(),
                 "w_qs_fc(), for a ResidualAttention");
}

TEST_F(LoadAdvice, OnNamesOfModelsInOthers) {
  // As torch.compile names the model that it wraps.
  auto model = decoder(block_options(), /*positions=*/true);
  const auto gpt = name_maps::nanogpt();
  save(*model, gpt, "_orig_mod.");
  EXPECT_EQ(advice(*model),
            "LoadOptions that may help: prefix (\"_orig_mod.\"), name_map (name_maps::nanogpt(), "
            "for a Decoder)");
  expect_loads(*model, LoadOptions().prefix("_orig_mod.").name_map(gpt));
  // One block of it.
  save(*model, gpt);
  TransformerBlock block(block_options());
  EXPECT_EQ(advice(*block),
            "LoadOptions that may help: prefix (\"transformer.h.0.\"), name_map "
            "(name_maps::nanogpt(), for a Decoder)");
  expect_loads(*block, LoadOptions().prefix("transformer.h.0.").name_map(gpt));
  // torch.nn.Transformer has both.
  Encoder encoder(EncoderOptions(block_options(), 2));
  Encoder cross(EncoderOptions(block_options().cross_attention(true), 2));
  NamedTensors both;
  for (const auto& [name, tensor] : name_maps::transformer_encoder().invert(*encoder)) {
    both["encoder." + name] = tensor;
  }
  for (const auto& [name, tensor] : name_maps::transformer_decoder().invert(*cross)) {
    both["decoder." + name] = tensor;
  }
  save_weights(both, path_);
  EXPECT_EQ(advice(*encoder),
            "LoadOptions that may help: prefix (\"encoder.\"), name_map "
            "(name_maps::transformer_encoder(), for an Encoder)");
  expect_loads(*encoder,
               LoadOptions().prefix("encoder.").name_map(name_maps::transformer_encoder()));
  EXPECT_EQ(advice(*cross),
            "LoadOptions that may help: prefix (\"decoder.\"), name_map "
            "(name_maps::transformer_decoder(), for an Encoder with cross-attention)");
  expect_loads(*cross, LoadOptions().prefix("decoder.").name_map(name_maps::transformer_decoder()));
  // An attention in a model, and a model that has it in the same place.
  MultiHeadAttention attention(8, 2);
  save(*attention, name_maps::w_q_w_o(), "block.attn.");
  EXPECT_EQ(advice(*attention),
            "LoadOptions that may help: prefix (\"block.attn.\"), name_map (name_maps::w_q_w_o(), "
            "for a MultiHeadAttention)");
  expect_loads(*attention, LoadOptions().prefix("block.attn.").name_map(name_maps::w_q_w_o()));
  torch::nn::ModuleDict inner, outer;
  inner->update({{"attn", attention.ptr()}});
  outer->update({{"block", inner.ptr()}});
  EXPECT_EQ(advice(*outer),
            "LoadOptions that may help: name_map (name_maps::w_q_w_o(), for a "
            "MultiHeadAttention)");
  expect_loads(*outer, LoadOptions().name_map(name_maps::w_q_w_o()));
}

/// The names of a whole model, of which the module is an attention, or none.
TEST_F(LoadAdvice, OnNamesThatTheMapTranslatesIntoMissingOnes) {
  const auto latent_options =
      LatentAttentionOptions(8, 2, /*key_rank=*/4).plain_head_dim(4).rotary_head_dim(4);
  LatentAttention latent(latent_options);
  const auto deepseek = name_maps::deepseek_attention();
  NamedTensors model = {{"model.embed_tokens.weight", at::ones({11, 8})},
                        {"model.layers.0.mlp.gate_proj.weight", at::ones({16, 8})}};
  const std::string prefix = "model.layers.0.self_attn.";
  for (const auto& [name, tensor] : deepseek.invert(*latent)) model[prefix + name] = tensor;
  save_weights(model, path_);
  EXPECT_EQ(advice(*latent), "LoadOptions that may help: prefix (\"" + prefix +
                                 "\"), name_map (name_maps::deepseek_attention(), for a "
                                 "LatentAttention)");
  expect_loads(*latent, LoadOptions().prefix(prefix).name_map(deepseek));
  // llama() makes names of a block, and q_proj() those of an attention that lies elsewhere.
  const std::string no_map = "LoadOptions that may help: name_map";
  save(*decoder(gated()), name_maps::llama());
  const auto options = GroupQueryAttentionOptions(8, 2, 2).input_bias(false).output_bias(false);
  EXPECT_EQ(advice(*GroupQueryAttention(options)), no_map);
  TransformerBlock block(gated());
  EXPECT_EQ(advice(*block),
            "LoadOptions that may help: prefix (\"model.layers.0.\"), name_map "
            "(name_maps::llama(), for a Decoder)");
  expect_loads(*block, LoadOptions().prefix("model.layers.0.").name_map(name_maps::llama()));
  save(*MultiHeadAttention(8, 2), name_maps::q_proj(), "model.decoder.layers.0.self_attn.");
  EXPECT_EQ(advice(*decoder(block_options())), no_map);
}

TEST_F(LoadAdvice, OnAPrefix) {
  MultiHeadAttention attention(4, 2);
  NamedTensors tensors;
  for (const auto& item : attention->named_parameters()) {
    tensors["attn." + item.key()] = item.value();
  }
  tensors["emb.weight"] = at::ones({3});
  save_weights(tensors, path_);
  EXPECT_EQ(error(*attention), "load_weights: path (" + path_ +
                                   ") must fit the module, 0 of whose 8 tensors do\n"
                                   "  missing: fc_q.weight\n"
                                   "  missing: fc_q.bias\n"
                                   "  missing: fc_k.weight\n"
                                   "  missing: fc_k.bias\n"
                                   "  missing: fc_v.weight\n"
                                   "  missing: fc_v.bias\n"
                                   "  missing: fc_out.weight\n"
                                   "  missing: fc_out.bias\n"
                                   "  unexpected: attn.fc_k.bias\n"
                                   "  unexpected: attn.fc_k.weight\n"
                                   "  unexpected: attn.fc_out.bias\n"
                                   "  unexpected: attn.fc_out.weight\n"
                                   "  unexpected: attn.fc_q.bias\n"
                                   "  unexpected: attn.fc_q.weight\n"
                                   "  unexpected: attn.fc_v.bias\n"
                                   "  unexpected: attn.fc_v.weight\n"
                                   "  unexpected: emb.weight\n"
                                   "  LoadOptions that may help: prefix (\"attn.\")");
  expect_loads(*attention, LoadOptions().prefix("attn."));
}

TEST_F(LoadAdvice, OnSeveralPrefixes) {
  AttentionV1 attention(4);
  const auto weight = attention->qkv->weight, bias = attention->qkv->bias;
  save_weights({{"m.a.qkv.weight", weight},
                {"m.a.qkv.bias", bias},
                {"m.b.qkv.weight", weight},
                {"m.b.qkv.bias", bias},
                {"m.c.qkv.weight", weight}},
               path_);
  const auto both = "LoadOptions that may help: prefix (\"m.a.\" or \"m.b.\")";
  EXPECT_EQ(advice(*attention), both);
  EXPECT_EQ(advice(*attention, LoadOptions().prefix("m.")), both);
  expect_loads(*attention, LoadOptions().prefix("m.b."));
  save_weights({{"a.qkv.weight", weight}}, path_);
  EXPECT_EQ(error(*attention), "load_weights: path (" + path_ +
                                   ") must fit the module, 0 of whose 2 tensors do\n"
                                   "  missing: qkv.weight (nearest in the file: a.qkv.weight)\n"
                                   "  missing: qkv.bias\n"
                                   "  unexpected: a.qkv.weight\n"
                                   "  LoadOptions that may help: prefix (\"a.\")");
}

/// Names that fit already would no longer do so.
TEST_F(LoadAdvice, OnAPrefixThatMakesMoreNamesFit) {
  const auto one = at::ones({1});
  NamedTensors tensors = {{"a", one}, {"ema.a", one}, {"ema.b", one}};
  save_weights(tensors, path_);
  Box few({{"a", one}, {"b", one}});
  EXPECT_EQ(error(few), "load_weights: path (" + path_ +
                            ") must fit the module, 1 of whose 2 tensors do\n"
                            "  missing: b (nearest in the file: ema.b)\n"
                            "  unexpected: ema.a\n"
                            "  unexpected: ema.b\n"
                            "  LoadOptions that may help: name_map");
  tensors["ema.c"] = one;
  save_weights(tensors, path_);
  Box more({{"a", one}, {"b", one}, {"c", one}});
  EXPECT_EQ(advice(more), "LoadOptions that may help: prefix (\"ema.\")");
  EXPECT_EQ(load_weights(more, path_, LoadOptions().prefix("ema.")).loaded.size(), 3U);
}

/// A terminal would obey control characters.
TEST_F(LoadAdvice, OnAPrefixInQuotes) {
  AttentionV1 attention(4);
  const std::string long_name(120, 'm');
  for (const auto& [prefix, shown] :
       {std::pair<std::string, std::string>{"a\x1b[31m", "a\\x1b[31m"}, {long_name, long_name}}) {
    save_weights({{prefix + ".qkv.weight", attention->qkv->weight},
                  {prefix + ".qkv.bias", attention->qkv->bias}},
                 path_);
    EXPECT_EQ(advice(*attention), "LoadOptions that may help: prefix (\"" + shown + ".\")");
    expect_loads(*attention, LoadOptions().prefix(prefix + "."));
  }
  MultiHeadAttention heads(8, 2);
  save(*heads, name_maps::w_q_w_o(), "a\x1b[31m.");
  EXPECT_EQ(advice(*heads),
            "LoadOptions that may help: prefix (\"a\\x1b[31m.\"), name_map "
            "(name_maps::w_q_w_o(), for a MultiHeadAttention)");
}

TEST_F(LoadAdvice, OnAFileOfASubmodule) {
  MultiHeadAttention attention(4, 2);
  torch::nn::ModuleDict model;
  model->update({{"attn", attention.ptr()}});
  save_weights(*attention, path_);
  EXPECT_EQ(advice(*model),
            "LoadOptions that may help: name_map (NameMap().rename(\"\", \"attn\"))");
  expect_loads(*model, LoadOptions().name_map(NameMap().rename("", "attn")));
  torch::nn::ModuleDict several;
  several->update({{"a", attention.ptr()}, {"b", MultiHeadAttention(4, 2).ptr()}});
  EXPECT_EQ(advice(*several),
            "LoadOptions that may help: name_map (NameMap().rename(\"\", \"a\") or "
            "NameMap().rename(\"\", \"b\"))");
}

TEST_F(LoadAdvice, OnAHeadOfItsOwn) {
  const DecoderOptions options(/*vocab_size=*/11, EncoderOptions(gated(), 1));
  Decoder tied(options), untied(DecoderOptions(options).tied_head(false));
  save_weights(*untied, path_);
  const auto size = std::to_string(tied->named_parameters().size());
  EXPECT_EQ(error(*tied), "load_weights: path (" + path_ + ") must fit the module, " + size +
                              " of whose " + size +
                              " tensors do\n"
                              "  unexpected: head.weight\n"
                              "  DecoderOptions that may help: tied_head(false)");
  expect_loads(*untied, {});
  save(*untied, name_maps::llama());
  const auto llama = LoadOptions().name_map(name_maps::llama());
  EXPECT_EQ(error(*tied, llama),
            "load_weights: name map: lm_head -> model.embed_tokens: lm_head.weight must equal "
            "model.embed_tokens.weight, to which it is tied in the module; with "
            "DecoderOptions::tied_head(false) it is not");
  expect_loads(*untied, llama);
  // A head of another model.
  save_weights({{"token_embedding.weight", at::ones({11, 8})}, {"head.weight", at::ones({2, 8})}},
               path_);
  EXPECT_EQ(error(*tied).find("tied_head"), std::string::npos);
  save_weights({{"head.weight", at::ones({11, 8})}}, path_);
  EXPECT_EQ(error(*tied).find("tied_head"), std::string::npos);
}

}  // namespace
}  // namespace heed::test
