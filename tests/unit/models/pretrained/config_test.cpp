// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "unit/models/pretrained/pretrained_files.h"

namespace heed::test {
namespace {

class PretrainedConfig : public PretrainedFiles {
 protected:
  /// The error of reading a file that is no sound JSON, after "path (...) must be a sound JSON
  /// file; ".
  std::string json_error(const std::string& json) const {
    const auto error = value_error([&] { read(json); });
    const auto start = "path (" + path_ + ") must be a sound JSON file; ";
    EXPECT_EQ(error.substr(0, start.size()), start) << error;
    return error.substr(std::min(start.size(), error.size()));
  }
};

TEST_F(PretrainedConfig, IsOneSoundJsonObject) {
  EXPECT_EQ(json_error(""), "it is empty: write or download it again");
  EXPECT_EQ(json_error("<html>"),
            "it is an HTML page: download the file itself, whose address on huggingface.co has "
            "/resolve/ where that of its page has /blob/");
  EXPECT_EQ(json_error("[1]"), "it must be a JSON object; it is an array");
  EXPECT_EQ(json_error(R"({"model_type": "llama"} x)"),
            "byte 25 must be of a JSON object in UTF-8");
  EXPECT_EQ(json_error(R"({"model_type": NaN})"), "byte 16 must be of a JSON object in UTF-8");
  EXPECT_EQ(json_error(R"({"hidden_size": 8, "hidden_size": 8})"),
            R"("hidden_size" must be there once)");
  EXPECT_EQ(json_error(R"({"rope_parameters": {"factor": 8, "factor": 8}})"),
            R"("rope_parameters": "factor" must be there once)");
  EXPECT_EQ(json_error(R"({"a": )" + std::string(101, '[') + std::string(101, ']') + "}"),
            R"("a" must be nested at most 100 deep)");
  std::string many = "[0";
  for (int i = 0; i < 1'000'000; ++i) many += ",0";
  EXPECT_EQ(json_error(R"({"a": )" + many + "]}"), R"("a" must have at most 1000000 parts)");
  EXPECT_EQ(error_of(R"({"a": ")" + std::string(10'000'000, 'x') + "\"}"),
            "its size (10000009) must be at most 10000000");
  EXPECT_EQ(value_error([&] { detail::read_blueprint(path_ + ".missing"); }),
            "path (" + path_ + ".missing) must name an existing file");
}

TEST_F(PretrainedConfig, NamesItsFamily) {
  EXPECT_EQ(error_of("{}"),
            "model_type must be there, or be given by PretrainedOptions::model_type");
  const std::string missing =
      "model_type must be there, or be given by PretrainedOptions::model_type";
  for (const auto& [architecture, family] :
       std::map<std::string, std::string>{{"LlamaForCausalLM", "llama"},
                                          {"Qwen2MoeForCausalLM", "qwen2_moe"},
                                          {"GPT2LMHeadModel", "gpt2"},
                                          {"GPTNeoXForCausalLM", "gpt_neox"},
                                          {"XLMRobertaModel", "xlm-roberta"},
                                          {"BertForMaskedLM", "bert"},
                                          {"ViTModel", "vit"}}) {
    EXPECT_EQ(error_of(R"({"architectures": [")" + architecture + "\"]}"),
              missing + "; \"" + architecture + "\" may be of \"" + family + '"');
  }
  for (const auto* architecture : {"Gemma3ForCausalLM", "OtherModel", "Model", ""}) {
    EXPECT_EQ(error_of(R"({"architectures": [")" + std::string(architecture) + "\"]}"), missing);
  }
  EXPECT_EQ(error_of(R"({"model_type": null})"), "model_type null must be a string");
  EXPECT_EQ(error("dbrx", ""),
            R"(model_type "dbrx" is a mixture of experts of a family that is not supported)");
  EXPECT_EQ(
      error("opt", ""),
      R"(model_type "opt" is not supported ()"
      "bart, bert, camembert, clip, clip_text_model, clip_vision_model, cohere2, deepseek_v2, "
      "deepseek_v3, dinov2, dinov2_with_registers, distilbert, electra, gemma, gemma2, "
      "gemma3, gemma3_text, glm4, gpt2, gpt_neox, gpt_oss, granite, llama, marian, mistral, "
      "mixtral, modernbert, mt5, olmo2, olmo3, olmoe, phi3, qwen2, qwen2_moe, qwen3, "
      "qwen3_moe, roberta, siglip, siglip_text_model, siglip_vision_model, smollm3, stablelm, "
      "starcoder2, t5, umt5, vit, whisper, xlm-roberta)");
}

TEST_F(PretrainedConfig, HasValuesOfItsFieldsTypes) {
  const auto of = [&](const std::string& field) { return error("llama", field + ","); };
  const std::string size = " must be a whole number from 1 to 2147483648";
  for (const std::string value : {R"("64")", "64.0", "0", "-8", "true", "null", "[64]", "{}",
                                  "2147483649", "9223372036854775808"}) {
    EXPECT_EQ(of(R"("hidden_size": )" + value), "hidden_size " + value + size);
  }
  for (const std::string value : {"0", "1001"}) {
    EXPECT_EQ(of(R"("num_hidden_layers": )" + value),
              "num_hidden_layers " + value + " must be a whole number from 1 to 1000");
  }
  for (const std::string value : {R"("0")", "null", "false", "[]"}) {
    EXPECT_EQ(of(R"("rms_norm_eps": )" + value),
              "rms_norm_eps " + value + " must be a finite number");
  }
  for (const std::string value : {"1.0", "-0.1"}) {
    EXPECT_EQ(of(R"("attention_dropout": )" + value),
              "attention_dropout " + value + " must be at least 0 and below 1");
  }
  for (const std::string value : {"0", R"("true")", "null"}) {
    EXPECT_EQ(of(R"("mlp_bias": )" + value), "mlp_bias " + value + " must be true or false");
  }
  EXPECT_EQ(of(R"("hidden_act": 3)"), "hidden_act 3 must be a string");
  EXPECT_EQ(of(R"("hidden_act": "relu2")"),
            R"(hidden_act "relu2" is not supported (relu, gelu, gelu_python, gelu_new, gelu_fast, )"
            "gelu_accurate, gelu_pytorch_tanh, gelu_python_tanh, silu, swish)");
  EXPECT_EQ(of(R"("rope_parameters": 3)"), "rope_parameters 3 must be an object");
  EXPECT_EQ(error("qwen2", R"("layer_types": ["full_attention", 3],)"),
            R"(layer_types ["full_attention",3] must be a list of strings)");
  EXPECT_EQ(error("smollm3", R"("no_rope_layers": [true],)"),
            "no_rope_layers [true] must be a list of whole numbers from 0 to 2147483648");
}

TEST_F(PretrainedConfig, IsUnderstoodToTheLastField) {
  const std::string rule = " is not understood; it may change the numbers";
  EXPECT_EQ(error("llama", R"("attention_sinks": 4,)"), "attention_sinks 4" + rule);
  EXPECT_EQ(error("llama", R"("attention_sinks": null,)"), "attention_sinks null" + rule);
  EXPECT_EQ(error("llama", R"("rope_parameters": {"rope_type": "default", "factor": 8.0},)"),
            "rope_parameters.factor 8.0" + rule);
  EXPECT_EQ(error("llama", R"("a\n\"b": "\u0007\n",)"), R"("a\x0a\x22b" "\u0007\n")" + rule);
  EXPECT_EQ(error("llama", R"("x": ")" + std::string(200, 'y') + "\","),
            "x \"" + std::string(99, 'y') + "..." + rule);
  EXPECT_EQ(error("gpt2", R"("hidden_size": 768,)"), "hidden_size 768" + rule);
  EXPECT_EQ(error("llama", R"("quantization_config": {"bits": 4},)"),
            R"(quantization_config {"bits":4} is of weights that another program has quantized, )"
            "which heed does not read: load the model of which they were made, with "
            "PretrainedOptions::weights");
  EXPECT_EQ(error("gemma3", R"("text_config": {"attention_sinks": 4},)"),
            "text_config.attention_sinks 4" + rule);
  EXPECT_EQ(error("bert", R"("pruned_heads": {"1": [2]},)"),
            R"(pruned_heads {"1":[2]} is not supported ({}))");
  EXPECT_EQ(error("bert", R"("is_decoder": true,)"), "is_decoder true is not supported (false)");
  // Fields that make no difference to the model may have any value.
  decoder("llama", R"("architectures": ["LlamaForCausalLM"], "use_cache": true, "eos_token_id": 2,
                      "torch_dtype": "bfloat16", "transformers_version": "4.40.0",
                      "id2label": {"0": "no"}, "temperature": 0.6, "pretraining_tp": 1,
                      "quantization_config": null, "rope_scaling": null, "output_past": true,
                      "eos_token_ids": [1], "language": "en", "name": "x", "tf_legacy_loss": false,
                      "_flash_attn_2_enabled": true, "model_max_length": 64,)");
}

/// Without any field, a family is the one that transformers makes.
TEST_F(PretrainedConfig, HasDefaults) {
  const auto options = decoder("llama");
  EXPECT_EQ(options.vocab_size(), 32000);
  EXPECT_EQ(options.stack().num_layers(), 32);
  EXPECT_FALSE(options.tied_head());
  const auto& block = options.stack().block();
  EXPECT_EQ(block.norm(), NormKind::rms_norm);
  EXPECT_EQ(block.norm_eps(), 1e-6);
  EXPECT_EQ(block.norm_placement(), NormPlacement::pre);
  EXPECT_EQ(block.attention().emb_dim(), 4096);
  EXPECT_EQ(block.attention().head_num(), 32);
  EXPECT_EQ(block.attention().group_num(), 32);
  EXPECT_EQ(block.attention().head_dim(), 128);
  EXPECT_FALSE(block.attention().input_bias());
  EXPECT_TRUE(block.attention().causal());
  EXPECT_FALSE(block.attention().window());
  EXPECT_EQ(block.attention().rotary(), RotaryEmbeddingOptions(128));
  EXPECT_EQ(block.feed_forward().hidden_dim(), 11008);
  EXPECT_EQ(block.feed_forward().activation(), Activation::swiglu);
  EXPECT_FALSE(block.feed_forward().bias());
}

}  // namespace
}  // namespace heed::test
