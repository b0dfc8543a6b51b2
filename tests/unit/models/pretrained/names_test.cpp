// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/inputs.h"
#include "unit/models/pretrained/pretrained_files.h"

namespace heed::test {
namespace {

using Names = std::vector<std::string>;

/// The names that transformers 5.23 writes. "x+" is x.weight and x.bias, "x!" is x itself, and "x"
/// is x.weight.
void add_names(const std::string& prefix, const Names& names, Names& all) {
  for (const auto& name : names) {
    const auto whole = prefix + name;
    const auto stem = whole.substr(0, whole.size() - 1);
    if (name.back() == '!') {
      all.push_back(stem);
    } else if (name.back() == '+') {
      all.push_back(stem + ".weight");
      all.push_back(stem + ".bias");
    } else {
      all.push_back(whole + ".weight");
    }
  }
}

Names names_of(const std::string& layers, const Names& outer, const Names& first,
               const Names& second) {
  Names all;
  add_names("", outer, all);
  add_names(layers + ".0.", first, all);
  add_names(layers + ".1.", second, all);
  return all;
}

/// Small models of each family, under the names of their files.
class PretrainedNames : public PretrainedFiles {
 protected:
  template <typename Model, typename Options>
  void expect_names(const std::string& type, const std::string& fields, const Names& expected) {
    const auto blueprint = family(type, fields);
    const Model model(std::get<Options>(blueprint.options));
    theirs_ = blueprint.names.invert(*model);
    Names names;
    for (const auto& [name, tensor] : theirs_) names.push_back(name);
    EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(expected)) << type;
    expect_reads<Model, Options>(type, fields, theirs_);
    Model other(std::get<Options>(blueprint.options));
    expect_advised(type, *other, blueprint.names);
  }

  /// load_weights of such a file names the map, and load_pretrained, which reads the folder.
  void expect_advised(const std::string& type, torch::nn::Module& model, const NameMap& names) {
    const auto path = (directory_ / "model.safetensors").string();
    save_weights(theirs_, path);
    static const std::map<std::string, std::string> others = {
        {"mistral", "llama()"},
        {"gemma", "llama()"},
        {"smollm3", "llama()"},
        {"qwen2", "llama()"},
        {"qwen3", "llama()"},
        {"gemma3_text", "gemma2()"},
        {"stablelm", "llama()"},
        {"gpt_neox", "gpt_neox(heads)"},
        {"granite", "llama()"},
        {"cohere2", "llama()"},
        {"olmo3", "olmo2()"},
        {"camembert", "roberta()"},
        {"xlm-roberta", "roberta()"},
        {"olmoe", "qwen3_moe()"},
        {"qwen2_moe", "qwen3_moe()"},
        {"deepseek_v2", "deepseek()"},
        {"deepseek_v3", "deepseek()"},
        {"clip_text_model", "clip_text()"},
        {"clip_vision_model", "clip_image()"},
        {"siglip_text_model", "siglip_text()"},
        {"siglip_vision_model", "siglip_image()"}};
    const auto found = others.find(type);
    const auto map = found == others.end() ? type + "()" : found->second;
    const auto error = value_error([&] { load_weights(model, path); });
    EXPECT_NE(error.find("LoadOptions that may help: name_map (name_maps::" + map + ", for "),
              std::string::npos)
        << type << ": " << error;
    EXPECT_NE(error.find("\n  load_pretrained (\"" + directory_.string() + "\") may make"),
              std::string::npos)
        << type << ": " << error;
    EXPECT_EQ(load_weights(model, path, LoadOptions().name_map(names)).loaded.size(),
              model.named_parameters().size() + model.named_buffers().size());
  }

  /// The tensors are all that the model has, and more does not matter.
  template <typename Model, typename Options>
  void expect_reads(const std::string& type, const std::string& fields, const NamedTensors& file) {
    const auto blueprint = family(type, fields);
    const Model model(std::get<Options>(blueprint.options));
    const auto ours = blueprint.names.apply(file, *model);
    EXPECT_EQ(ours.size(), model->named_parameters().size() + model->named_buffers().size())
        << type;
    for (const auto& item : model->named_parameters()) {
      const auto found = ours.find(item.key());
      ASSERT_NE(found, ours.end()) << type << ": " << item.key();
      EXPECT_EQ(found->second.sizes(), item.value().sizes()) << type << ": " << item.key();
    }
  }

  void expect_decoder_names(const std::string& type, const std::string& fields,
                            const Names& expected) {
    expect_names<Decoder, DecoderOptions>(type, fields, expected);
  }
  void expect_text_encoder_names(const std::string& type, const std::string& fields,
                                 const Names& expected) {
    expect_names<TextEncoder, TextEncoderOptions>(type, fields, expected);
  }

  /// The family's tensors under names without `prefix`, and tensors that no module has.
  NamedTensors without(const std::string& prefix, const Names& others) const {
    NamedTensors file;
    for (const auto& [name, tensor] : theirs_) {
      EXPECT_EQ(name.rfind(prefix, 0), 0U) << name;
      file[name.substr(prefix.size())] = tensor;
    }
    for (const auto& name : others) file[name] = uniform({3}, at::kFloat);
    return file;
  }

  NamedTensors theirs_;
};

constexpr auto kSizes = R"("vocab_size": 50, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,)";
constexpr auto kGroups = R"("num_key_value_heads": 2, "head_dim": 8,)";

Names operator+(Names a, const Names& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(PretrainedNames, OfLlamaAndItsLike) {
  const auto fields = std::string(kSizes) + kGroups;
  const Names outer = {"model.embed_tokens", "model.norm"};
  const Names head = {"lm_head"};
  const Names mlp = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"};
  const Names norms = {"input_layernorm", "post_attention_layernorm"};
  const Names projections = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                             "self_attn.o_proj"};
  const Names qk_norms = {"self_attn.q_norm", "self_attn.k_norm"};
  const Names four_norms = norms + Names{"pre_feedforward_layernorm", "post_feedforward_layernorm"};
  const auto expect = [&](const std::string& type, const Names& layer) {
    expect_decoder_names(type, fields + R"("tie_word_embeddings": false,)",
                         names_of("model.layers", outer + head, layer, layer));
  };
  for (const auto* type : {"llama", "mistral", "gemma", "smollm3", "granite"}) {
    expect(type, projections + mlp + norms);
  }
  expect("cohere2", projections + mlp + Names{"input_layernorm"});
  expect("qwen2",
         Names{"self_attn.q_proj+", "self_attn.k_proj+", "self_attn.v_proj+", "self_attn.o_proj"} +
             mlp + norms);
  expect("qwen3", projections + qk_norms + mlp + norms);
  expect("gemma2", projections + mlp + four_norms);
  expect("gemma3_text", projections + qk_norms + mlp + four_norms);
  for (const auto* type : {"olmo2", "olmo3"}) {
    expect(type, projections + qk_norms + mlp +
                     Names{"post_attention_layernorm", "post_feedforward_layernorm"});
  }
  expect("glm4", norms + Names{"post_self_attn_layernorm", "post_mlp_layernorm",
                               "self_attn.q_proj+", "self_attn.k_proj+", "self_attn.v_proj+",
                               "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"});
  expect("phi3", norms + Names{"self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj",
                               "mlp.down_proj"});
  auto older = theirs_;
  older["model.layers.0.self_attn.rotary_emb.inv_freq"] = uniform({4}, at::kFloat);
  expect_reads<Decoder, DecoderOptions>("phi3", fields + R"("tie_word_embeddings": false,)", older);
  const auto stablelm = std::string(kSizes) + R"("num_key_value_heads": 2,)";
  const auto layer = projections + mlp + Names{"input_layernorm+"};
  const Names outer_norm = {"model.embed_tokens", "model.norm+", "lm_head"};
  expect_decoder_names("stablelm", stablelm + R"("use_parallel_residual": true,)",
                       names_of("model.layers", outer_norm, layer, layer));
  const auto with_norm = layer + Names{"post_attention_layernorm+"};
  expect_decoder_names("stablelm", stablelm,
                       names_of("model.layers", outer_norm, with_norm, with_norm));
}

TEST_F(PretrainedNames, OfStarcoder2) {
  const Names layer = {
      "self_attn.q_proj+", "self_attn.k_proj+", "self_attn.v_proj+", "self_attn.o_proj+",
      "mlp.c_fc+",         "mlp.c_proj+",       "input_layernorm+",  "post_attention_layernorm+"};
  expect_decoder_names(
      "starcoder2", kSizes + std::string(kGroups) + R"("tie_word_embeddings": false,)",
      names_of("model.layers", {"model.embed_tokens", "model.norm+", "lm_head"}, layer, layer));
}

/// The names of text models whose folders have a vision tower too.
TEST_F(PretrainedNames, OfGemma3) {
  const Names layer = {"self_attn.q_proj",
                       "self_attn.k_proj",
                       "self_attn.v_proj",
                       "self_attn.o_proj",
                       "self_attn.q_norm",
                       "self_attn.k_norm",
                       "mlp.gate_proj",
                       "mlp.up_proj",
                       "mlp.down_proj",
                       "input_layernorm",
                       "post_attention_layernorm",
                       "pre_feedforward_layernorm",
                       "post_feedforward_layernorm"};
  for (const std::string tied : {"true", "false"}) {
    const auto fields = R"("tie_word_embeddings": )" + tied + R"(, "text_config": {)" + kSizes +
                        kGroups + R"("model_type": "gemma3_text"},)";
    expect_decoder_names("gemma3", fields,
                         names_of("language_model.model.layers",
                                  {"language_model.model.embed_tokens", "language_model.model.norm",
                                   "language_model.lm_head"},
                                  layer, layer));
    // Since version 4.52, transformers gives these names to a state_dict.
    NamedTensors newer;
    const std::string text = "language_model.model.", head = "language_model.lm_head.";
    for (const auto& [name, tensor] : theirs_) {
      const bool is_head = name.rfind(head, 0) == 0;
      newer[is_head ? "lm_head." + name.substr(head.size())
                    : "model.language_model." + name.substr(text.size())] = tensor;
    }
    for (auto* file : {&theirs_, &newer}) {
      const std::string place = file == &newer ? "model." : "";
      for (const auto* name :
           {"vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight",
            "vision_tower.vision_model.head.probe", "vision_tower.post_layernorm.bias",
            "multi_modal_projector.mm_input_projection_weight"}) {
        (*file)[place + name] = uniform({3}, at::kFloat);
      }
      expect_reads<Decoder, DecoderOptions>("gemma3", fields, *file);
    }
  }
}

TEST_F(PretrainedNames, OfMixturesOfExperts) {
  const auto fields = std::string(kSizes) + kGroups + R"("num_experts": 2, "num_experts_per_tok": 1,
      "tie_word_embeddings": false,)";
  const Names outer = {"model.embed_tokens", "model.norm", "lm_head"};
  const Names attention = {"input_layernorm",  "post_attention_layernorm", "self_attn.q_proj",
                           "self_attn.k_proj", "self_attn.v_proj",         "self_attn.o_proj"};
  const Names qk_norms = {"self_attn.q_norm", "self_attn.k_norm"};
  const auto parts_of = [](const std::string& prefix, const Names& parts) {
    Names names;
    for (const auto& part : parts) names.push_back(prefix + part);
    return names;
  };
  const Names mlp = {"gate_proj", "up_proj", "down_proj"};
  const auto experts =
      Names{"mlp.gate"} + parts_of("mlp.experts.0.", mlp) + parts_of("mlp.experts.1.", mlp);
  const auto expect = [&](const std::string& type, const std::string& own, const Names& first,
                          const Names& second) {
    expect_decoder_names(type, fields + own, names_of("model.layers", outer, first, second));
  };
  const Names w = {"w1", "w2", "w3"};
  const auto mixtral = attention + Names{"block_sparse_moe.gate"} +
                       parts_of("block_sparse_moe.experts.0.", w) +
                       parts_of("block_sparse_moe.experts.1.", w);
  expect("mixtral", "", mixtral, mixtral);
  const auto whole = attention + qk_norms + experts;
  expect("olmoe", "", whole, whole);
  expect("qwen3_moe", "", whole, whole);
  expect("qwen3_moe", R"("mlp_only_layers": [0],)", attention + qk_norms + parts_of("mlp.", mlp),
         whole);
  expect("qwen3_moe", R"("decoder_sparse_step": 2,)", attention + qk_norms + parts_of("mlp.", mlp),
         whole);
  const auto shared =
      attention + experts + parts_of("mlp.shared_expert.", mlp) + Names{"mlp.shared_expert_gate"};
  expect("qwen2_moe", R"("qkv_bias": false,)", shared, shared);
}

TEST_F(PretrainedNames, OfStackedExperts) {
  const auto fields =
      std::string(kSizes) + kGroups + R"("num_local_experts": 3, "num_experts_per_tok": 1,)";
  const Names outer = {"model.embed_tokens", "model.norm", "lm_head"};
  const Names attention = {"input_layernorm",   "post_attention_layernorm", "self_attn.q_proj+",
                           "self_attn.k_proj+", "self_attn.v_proj+",        "self_attn.o_proj+",
                           "self_attn.sinks!"};
  const Names experts = {"mlp.router+", "mlp.experts.gate_up_proj!",
                         "mlp.experts.gate_up_proj_bias!", "mlp.experts.down_proj!",
                         "mlp.experts.down_proj_bias!"};
  const auto whole = attention + experts;
  expect_decoder_names("gpt_oss", fields, names_of("model.layers", outer, whole, whole));
}

TEST_F(PretrainedNames, OfDeepSeek) {
  const auto fields = std::string(kSizes) + R"("n_routed_experts": 2, "num_experts_per_tok": 1,
      "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,)";
  const Names outer = {"model.embed_tokens", "model.norm", "lm_head"};
  const Names attention = {
      "input_layernorm",          "post_attention_layernorm", "self_attn.kv_a_proj_with_mqa",
      "self_attn.kv_a_layernorm", "self_attn.kv_b_proj",      "self_attn.o_proj"};
  const Names with_rank = {"self_attn.q_a_proj", "self_attn.q_a_layernorm", "self_attn.q_b_proj"};
  const Names dense = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"};
  Names mixture = {"mlp.gate"};
  for (const auto* module : {"experts.0", "experts.1", "shared_experts"}) {
    for (const auto* part : {"gate_proj", "up_proj", "down_proj"}) {
      mixture.push_back(std::string("mlp.") + module + "." + part);
    }
  }
  const auto names = [&](const Names& own) {
    return names_of("model.layers", outer, attention + own + dense, attention + own + mixture);
  };
  expect_decoder_names("deepseek_v2", fields, names(with_rank));
  const Names without_rank = {"self_attn.q_proj"};
  expect_decoder_names("deepseek_v2", fields + R"("q_lora_rank": null,)", names(without_rank));
  expect_decoder_names("deepseek_v3", fields + R"("num_key_value_heads": 4,)",
                       names(with_rank) + Names{"model.layers.1.mlp.gate.e_score_correction_bias"});
}

TEST_F(PretrainedNames, OfGptNeoX) {
  const Names layer = {"input_layernorm+",   "post_attention_layernorm+",
                       "attention.dense+",   "attention.query_key_value+",
                       "mlp.dense_h_to_4h+", "mlp.dense_4h_to_h+"};
  expect_decoder_names(
      "gpt_neox", kSizes,
      names_of("gpt_neox.layers", {"gpt_neox.embed_in", "gpt_neox.final_layer_norm+", "embed_out"},
               layer, layer));
  auto older = theirs_;
  for (const auto* name : {"bias", "masked_bias", "rotary_emb.inv_freq"}) {
    older[std::string("gpt_neox.layers.1.attention.") + name] = uniform({3}, at::kFloat);
  }
  expect_reads<Decoder, DecoderOptions>("gpt_neox", kSizes, older);
  auto newer = theirs_;  // a state_dict of transformers 5, whose save_pretrained writes older names
  auto head = newer.extract("embed_out.weight");
  head.key() = "lm_head.weight";
  newer.insert(std::move(head));
  expect_reads<Decoder, DecoderOptions>("gpt_neox", kSizes, newer);
  const auto tied = std::string(kSizes) + R"("tie_word_embeddings": true,)";
  newer["lm_head.weight"] = newer["gpt_neox.embed_in.weight"];
  expect_reads<Decoder, DecoderOptions>("gpt_neox", tied, newer);
  expect_decoder_names(
      "gpt_neox", tied,
      names_of("gpt_neox.layers", {"gpt_neox.embed_in", "gpt_neox.final_layer_norm+", "embed_out"},
               layer, layer));
}

TEST_F(PretrainedNames, OfGpt2) {
  const Names layer = {"ln_1+",        "ln_2+",     "attn.c_attn+",
                       "attn.c_proj+", "mlp.c_fc+", "mlp.c_proj+"};
  expect_decoder_names(
      "gpt2",
      R"("vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4,
                          "n_positions": 64,)",
      names_of("transformer.h",
               {"transformer.wte", "transformer.wpe", "transformer.ln_f+", "lm_head"}, layer,
               layer));
}

TEST_F(PretrainedNames, OfBertAndRoberta) {
  for (const std::string type : {"bert", "roberta", "xlm-roberta", "camembert"}) {
    const std::string prefix = type == "bert" ? "bert." : "roberta.";
    const Names layer = {"attention.self.query+",
                         "attention.self.key+",
                         "attention.self.value+",
                         "attention.output.dense+",
                         "attention.output.LayerNorm+",
                         "intermediate.dense+",
                         "output.dense+",
                         "output.LayerNorm+"};
    const auto embeddings = prefix + "embeddings.";
    expect_text_encoder_names(
        type, kSizes,
        names_of(prefix + "encoder.layer",
                 {embeddings + "word_embeddings", embeddings + "position_embeddings",
                  embeddings + "token_type_embeddings", embeddings + "LayerNorm+"},
                 layer, layer));
    auto with_heads = theirs_;
    for (const auto* name : {"pooler.dense.weight", "embeddings.position_ids"}) {
      with_heads[prefix + name] = uniform({3}, at::kFloat);
    }
    for (const auto* name : {type == "bert" ? "cls.predictions.bias" : "lm_head.dense.weight",
                             "classifier.out_proj.weight", "qa_outputs.bias"}) {
      with_heads[name] = uniform({3}, at::kFloat);
    }
    expect_reads<TextEncoder, TextEncoderOptions>(type, kSizes, with_heads);
    auto plain = without(prefix, {"pooler.dense.bias", "embeddings.position_ids"});
    expect_reads<TextEncoder, TextEncoderOptions>(type, kSizes, plain);
    for (const auto* norm : {"embeddings.LayerNorm", "encoder.layer.1.output.LayerNorm",
                             "encoder.layer.0.attention.output.LayerNorm"}) {
      for (const auto& [name, older] : {std::pair(".weight", ".gamma"), {".bias", ".beta"}}) {
        auto tensor = plain.extract(norm + std::string(name));
        tensor.key() = norm + std::string(older);
        plain.insert(std::move(tensor));
      }
    }
    expect_reads<TextEncoder, TextEncoderOptions>(type, kSizes, plain);
  }
}

TEST_F(PretrainedNames, OfElectra) {
  const auto fields = kSizes + std::string(R"("embedding_size": 16,)");
  const Names layer = {"attention.self.query+",
                       "attention.self.key+",
                       "attention.self.value+",
                       "attention.output.dense+",
                       "attention.output.LayerNorm+",
                       "intermediate.dense+",
                       "output.dense+",
                       "output.LayerNorm+"};
  expect_text_encoder_names(
      "electra", fields,
      names_of("electra.encoder.layer",
               {"electra.embeddings.word_embeddings", "electra.embeddings.position_embeddings",
                "electra.embeddings.token_type_embeddings", "electra.embeddings.LayerNorm+",
                "electra.embeddings_project+"},
               layer, layer));
  expect_reads<TextEncoder, TextEncoderOptions>(
      "electra", fields,
      without("electra.",
              {"embeddings.position_ids", "discriminator_predictions.dense.weight",
               "generator_predictions.LayerNorm.weight", "generator_lm_head.bias",
               "sequence_summary.summary.weight", "classifier.out_proj.bias", "qa_outputs.bias"}));
}

TEST_F(PretrainedNames, OfDistilBert) {
  constexpr auto kFields = R"("vocab_size": 50, "dim": 32, "hidden_dim": 48, "n_layers": 2,
      "n_heads": 4, "max_position_embeddings": 64,)";
  const Names layer = {"attention.q_lin+",   "attention.k_lin+",  "attention.v_lin+",
                       "attention.out_lin+", "sa_layer_norm+",    "ffn.lin1+",
                       "ffn.lin2+",          "output_layer_norm+"};
  expect_text_encoder_names(
      "distilbert", kFields,
      names_of("distilbert.transformer.layer",
               {"distilbert.embeddings.word_embeddings",
                "distilbert.embeddings.position_embeddings", "distilbert.embeddings.LayerNorm+"},
               layer, layer));
  expect_reads<TextEncoder, TextEncoderOptions>(
      "distilbert", kFields,
      without("distilbert.",
              {"vocab_transform.weight", "vocab_layer_norm.bias", "vocab_projector.weight",
               "pre_classifier.weight", "classifier.weight", "qa_outputs.weight"}));
}

TEST_F(PretrainedNames, OfModernBert) {
  const Names first = {"attn.Wqkv", "attn.Wo", "mlp.Wi", "mlp.Wo", "mlp_norm"};
  expect_text_encoder_names(
      "modernbert", kSizes,
      names_of("model.layers",
               {"model.embeddings.tok_embeddings", "model.embeddings.norm", "model.final_norm"},
               first, first + Names{"attn_norm"}));
  expect_reads<TextEncoder, TextEncoderOptions>(
      "modernbert", kSizes,
      without("model.",
              {"head.dense.weight", "head.norm.weight", "decoder.bias", "classifier.weight"}));
}

TEST_F(PretrainedNames, OfVit) {
  constexpr auto kFields = R"("hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
      "num_attention_heads": 4, "image_size": 16, "patch_size": 8,)";
  const Names layer = {"attention.attention.query+", "attention.attention.key+",
                       "attention.attention.value+", "attention.output.dense+",
                       "intermediate.dense+",        "output.dense+",
                       "layernorm_before+",          "layernorm_after+"};
  expect_names<ImageEncoder, ImageEncoderOptions>(
      "vit", kFields,
      names_of("vit.encoder.layer",
               {"vit.embeddings.cls_token!", "vit.embeddings.position_embeddings!",
                "vit.embeddings.patch_embeddings.projection+", "vit.layernorm+"},
               layer, layer));
  expect_reads<ImageEncoder, ImageEncoderOptions>(
      "vit", kFields,
      without("vit.", {"pooler.dense.weight", "embeddings.mask_token", "classifier.weight",
                       "decoder.0.weight"}));
}

TEST_F(PretrainedNames, OfDinov2) {
  const std::string fields = R"("hidden_size": 8, "mlp_ratio": 2, "num_hidden_layers": 2,
      "num_attention_heads": 2, "image_size": 8, "patch_size": 4, )";
  const Names attention = {"attention.attention.query+",
                           "attention.attention.key+",
                           "attention.attention.value+",
                           "attention.output.dense+",
                           "norm1+",
                           "norm2+",
                           "layer_scale1.lambda1!",
                           "layer_scale2.lambda1!"};
  const auto layer = [&](const Names& more) {
    auto all = attention;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto plain = layer({"mlp.fc1+", "mlp.fc2+"});
  const auto gated = layer({"mlp.weights_in+", "mlp.weights_out+"});
  expect_names<ImageEncoder, ImageEncoderOptions>(
      "dinov2", fields,
      names_of("dinov2.encoder.layer",
               {"dinov2.embeddings.cls_token!", "dinov2.embeddings.position_embeddings!",
                "dinov2.embeddings.patch_embeddings.projection+", "dinov2.layernorm+"},
               plain, plain));
  const std::string registers = "dinov2_with_registers.";
  expect_names<ImageEncoder, ImageEncoderOptions>(
      "dinov2_with_registers", fields,
      names_of(registers + "encoder.layer",
               {registers + "embeddings.cls_token!", registers + "embeddings.register_tokens!",
                registers + "embeddings.position_embeddings!",
                registers + "embeddings.patch_embeddings.projection+", registers + "layernorm+"},
               plain, plain));
  const auto swiglu = family("dinov2", fields + R"("use_swiglu_ffn": true, )");
  const ImageEncoder model(std::get<ImageEncoderOptions>(swiglu.options));
  const auto theirs = swiglu.names.invert(*model);
  EXPECT_EQ(theirs.size(), 6 + 2 * (2 * 8 + 2));
  EXPECT_EQ(theirs.at("dinov2.encoder.layer.1.mlp.weights_in.weight").size(0), 32);
}

/// Layers of CLIP and of SigLIP.
const Names kTowerLayer = {
    "self_attn.q_proj+", "self_attn.k_proj+", "self_attn.v_proj+", "self_attn.out_proj+",
    "layer_norm1+",      "layer_norm2+",      "mlp.fc1+",          "mlp.fc2+"};
constexpr auto kTower = R"("hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 2, )";

TEST_F(PretrainedNames, OfTextTowers) {
  const std::string fields = std::string(kTower) + R"("vocab_size": 20, "eos_token_id": 2, )";
  const Names outer = {"text_model.embeddings.token_embedding",
                       "text_model.embeddings.position_embedding", "text_model.final_layer_norm+"};
  auto projected = outer, headed = outer;
  projected.emplace_back("text_projection");
  headed.emplace_back("text_model.head+");
  const std::string layers = "text_model.encoder.layers";
  expect_text_encoder_names("clip_text_model", fields,
                            names_of(layers, outer, kTowerLayer, kTowerLayer));
  expect_text_encoder_names("clip_text_model",
                            R"("architectures": ["CLIPTextModelWithProjection"], )" + fields,
                            names_of(layers, projected, kTowerLayer, kTowerLayer));
  expect_text_encoder_names("siglip_text_model", fields,
                            names_of(layers, headed, kTowerLayer, kTowerLayer));
}

TEST_F(PretrainedNames, OfImageTowers) {
  const std::string fields = std::string(kTower) + R"("image_size": 8, "patch_size": 4, )";
  const std::string layers = "vision_model.encoder.layers";
  expect_names<ImageEncoder, ImageEncoderOptions>(
      "clip_vision_model", R"("architectures": ["CLIPVisionModelWithProjection"], )" + fields,
      names_of(
          layers,
          {"vision_model.embeddings.class_embedding!", "vision_model.embeddings.position_embedding",
           "vision_model.embeddings.patch_embedding", "vision_model.pre_layrnorm+",
           "vision_model.post_layernorm+", "visual_projection"},
          kTowerLayer, kTowerLayer));
  const std::string head = "vision_model.head.";
  expect_names<ImageEncoder, ImageEncoderOptions>(
      "siglip_vision_model", fields,
      names_of(
          layers,
          {"vision_model.embeddings.position_embedding", "vision_model.embeddings.patch_embedding+",
           "vision_model.post_layernorm+", head + "probe!", head + "attention.in_proj_weight!",
           head + "attention.in_proj_bias!", head + "attention.out_proj+", head + "layernorm+",
           head + "mlp.fc1+", head + "mlp.fc2+"},
          kTowerLayer, kTowerLayer));
}

}  // namespace
}  // namespace heed::test
