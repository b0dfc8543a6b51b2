// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "unit/models/pretrained/pretrained_files.h"

namespace heed::test {
namespace {

class PretrainedRope : public PretrainedFiles {
 protected:
  /// The rotary embedding's options of a model with these fields and 8 heads of 16 elements.
  RotaryEmbeddingOptions rope(const std::string& type, const std::string& fields) const {
    const auto sizes = std::string(R"("hidden_size": 128, "num_attention_heads": 8,)") +
                       R"("max_position_embeddings": 64, "num_hidden_layers": 1,)" +
                       (type == "mistral" || type == "phi3" ? "" : R"("num_key_value_heads": 8,)");
    return decoder(type, sizes + fields + ",").stack().block().attention().rotary().value();
  }
  RotaryEmbeddingOptions llama(const std::string& fields) const { return rope("llama", fields); }

  std::string parameters_error(const std::string& parameters) const {
    return error("llama", R"("rope_parameters": {)" + parameters + "},");
  }
};

TEST_F(PretrainedRope, HasOldAndNewNames) {
  const auto expected = RotaryEmbeddingOptions(16).base(5e5);
  EXPECT_EQ(llama(R"("rope_theta": 500000.0, "rope_scaling": null)"), expected);
  EXPECT_EQ(llama(R"("rope_parameters": {"rope_theta": 500000, "rope_type": "default"})"),
            expected);
  EXPECT_EQ(llama(R"("rope_theta": 5e5, "rope_parameters": {})"), expected);
  EXPECT_EQ(llama(R"("rope_parameters": null)"), RotaryEmbeddingOptions(16));
  EXPECT_EQ(rope("smollm3", R"("no_rope_layer_interval": 2)"),
            RotaryEmbeddingOptions(16).base(2e6));
  const auto linear = RotaryEmbeddingOptions(16).scaling(LinearScaling(2.5));
  for (const std::string name : {"rope_scaling", "rope_parameters"}) {
    for (const std::string type : {"type", "rope_type"}) {
      EXPECT_EQ(llama("\"" + name + R"(": {")" + type + R"(": "linear", "factor": 2.5})"), linear);
    }
  }
  EXPECT_EQ(error("llama", R"("rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5},)"),
            "rope_theta 10000.0 must be 500000, by another field");
  // Both, as files have them that older and newer programs are to read.
  for (const std::string type : {"type", "rope_type"}) {
    const auto scaling = R"("rope_scaling": {")" + type + R"(": "linear", "factor": 2.5})";
    EXPECT_EQ(llama(scaling + R"(, "rope_parameters": {"rope_type": "linear", "factor": 2.5})"),
              linear);
    EXPECT_EQ(error("llama", scaling + R"(, "rope_parameters": {"rope_type": "linear"},)"),
              R"(rope_scaling {"factor":2.5,")" + type +
                  R"(":"linear"} must agree with rope_parameters)");
  }
}

TEST_F(PretrainedRope, IsScaled) {
  EXPECT_EQ(llama(R"("rope_scaling": {"type": "dynamic", "factor": 4.0})"),
            RotaryEmbeddingOptions(16).scaling(NtkScaling(4.0).original_length(64)));
  const std::string llama3 =
      R"("rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 5)";
  const auto scaling = [](int64_t length) {
    return RotaryEmbeddingOptions(16).scaling(
        Llama3Scaling(8.0, length).low_freq_factor(1.0).high_freq_factor(5.0));
  };
  EXPECT_EQ(llama(R"("rope_scaling": {)" + llama3 + "}"), scaling(64));
  EXPECT_EQ(llama(R"("rope_scaling": {)" + llama3 + R"(, "original_max_position_embeddings": 32})"),
            scaling(32));
  EXPECT_EQ(llama(R"("original_max_position_embeddings": 16, "rope_scaling": {)" + llama3 +
                  R"(, "original_max_position_embeddings": 32})"),
            scaling(16));
  EXPECT_EQ(parameters_error(R"("rope_type": "linear")"), "rope_parameters.factor must be there");
  EXPECT_EQ(parameters_error(R"("rope_type": "llama3", "factor": 8)"),
            "rope_parameters.low_freq_factor must be there");
  EXPECT_EQ(parameters_error(R"("rope_type": "proportional", "factor": 8)"),
            R"(rope_parameters.rope_type "proportional" is not supported (default, linear, )"
            "dynamic, yarn, llama3, longrope)");
  EXPECT_EQ(error("llama", R"("rope_scaling": {"type": "axial"},)"),
            R"(rope_scaling.type "axial" is not supported (default, linear, dynamic, yarn, )"
            "llama3, longrope)");
}

TEST_F(PretrainedRope, IsScaledByYarn) {
  const auto yarn = [&](const std::string& fields) {
    return std::get<YarnScaling>(
        *llama(R"("rope_parameters": {"rope_type": "yarn")" + fields + "}").scaling());
  };
  const std::string original = R"(, "original_max_position_embeddings": 16)";
  const auto plain = yarn(R"(, "factor": 4.0)" + original);
  EXPECT_EQ(plain.factor(), 4.0);
  EXPECT_EQ(plain.original_length(), 16);
  EXPECT_EQ(plain.beta_fast(), 32.0);
  EXPECT_EQ(plain.beta_slow(), 1.0);
  EXPECT_FALSE(plain.attention_factor());  // 0.1 ln(4) + 1
  const auto full = yarn(R"(, "factor": 4, "beta_fast": 16, "beta_slow": 2, "truncate": true,
                            "attention_factor": 1.25)" +
                         original);
  EXPECT_EQ(full.beta_fast(), 16.0);
  EXPECT_EQ(full.beta_slow(), 2.0);
  EXPECT_EQ(full.attention_factor(), 1.25);
  const auto scales = yarn(R"(, "factor": 4, "mscale": 1.5, "mscale_all_dim": 0.5)" + original);
  EXPECT_FALSE(scales.attention_factor());  // (0.15 ln(4) + 1) / (0.05 ln(4) + 1)
  EXPECT_EQ(scales.mscale(), 1.5);
  EXPECT_EQ(scales.mscale_all_dim(), 0.5);
  EXPECT_FALSE(
      yarn(R"(, "factor": 4, "mscale": 1.5, "beta_fast": 0)" + original).attention_factor());
  EXPECT_EQ(yarn(R"(, "factor": null)" + original).factor(), 4.0);  // 64 / 16
  EXPECT_EQ(parameters_error(R"("rope_type": "yarn")"), "rope_parameters.factor must be there");
  EXPECT_TRUE(plain.truncate());
  EXPECT_FALSE(yarn(R"(, "factor": 4, "truncate": false)").truncate());
  EXPECT_EQ(parameters_error(R"("rope_type": "yarn", "factor": 4, "truncate": 0)"),
            "rope_parameters.truncate 0 must be true or false");
  EXPECT_EQ(error("gemma3_text", R"("rope_parameters": {"full_attention": {"rope_type": "yarn",
      "factor": 4, "truncate": false}},)"),
            "rope_parameters.full_attention.truncate false is not supported (true)");
}

TEST_F(PretrainedRope, IsScaledByLongRope) {
  const std::string factors = R"("short_factor": [1, 1.5], "long_factor": [2, 4.5])";
  const auto longrope = [&](const std::string& top, const std::string& fields) {
    return std::get<LongRopeScaling>(
        *rope("phi3",
              top + R"("partial_rotary_factor": 0.25, "rope_scaling": {)" + factors + fields + "}")
             .scaling());
  };
  const auto plain = longrope(R"("original_max_position_embeddings": 16,)", R"(, "type": "su")");
  EXPECT_EQ(plain.short_factors(), std::vector<double>({1.0, 1.5}));
  EXPECT_EQ(plain.long_factors(), std::vector<double>({2.0, 4.5}));
  EXPECT_EQ(plain.original_length(), 16);
  EXPECT_DOUBLE_EQ(plain.attention_factor(), std::sqrt(1.0 + std::log(4.0) / std::log(16.0)));
  EXPECT_EQ(longrope("", R"(, "type": "longrope")").original_length(), 4096);
  EXPECT_EQ(longrope("", R"(, "type": "longrope")").attention_factor(), 1.0);  // 64 / 4096
  EXPECT_EQ(longrope("", R"(, "type": "yarn", "attention_factor": 1.5)").attention_factor(), 1.5);
  EXPECT_DOUBLE_EQ(longrope("", R"(, "rope_type": "longrope", "factor": 8)").attention_factor(),
                   std::sqrt(1.0 + std::log(8.0) / std::log(4096.0)));
  EXPECT_EQ(error("phi3", R"("rope_scaling": {"type": "linear", "factor": 2.0},)"),
            R"(rope_scaling.type "linear" is not supported (default, longrope))");
  EXPECT_EQ(parameters_error(R"("rope_type": "longrope", "short_factor": [1, null])"),
            "rope_parameters.short_factor [1,null] must be a list of finite numbers");
  EXPECT_EQ(parameters_error(R"("rope_type": "longrope", "short_factor": [1])"),
            "rope_parameters.long_factor must be there");
}

TEST_F(PretrainedRope, RotatesPartOfAHead) {
  EXPECT_EQ(rope("stablelm", R"("rope_theta": 1e4)").rotary_dim(), 4);
  EXPECT_EQ(rope("stablelm", R"("partial_rotary_factor": 0.5)").rotary_dim(), 8);
  EXPECT_EQ(rope("stablelm", R"("rope_parameters": {"partial_rotary_factor": 0.8})").rotary_dim(),
            12);  // of 12.8
  EXPECT_FALSE(rope("phi3", R"("rope_parameters": {"partial_rotary_factor": 1.0})").rotary_dim());
  EXPECT_FALSE(llama(R"("partial_rotary_factor": 1.0)").rotary_dim());
  EXPECT_EQ(error("llama", R"("partial_rotary_factor": 0.5,)"),
            "partial_rotary_factor 0.5 is not supported (1.0)");
  EXPECT_EQ(parameters_error(R"("partial_rotary_factor": 0.5)"),
            "rope_parameters.partial_rotary_factor 0.5 is not supported (1.0)");
  EXPECT_EQ(error("stablelm", R"("partial_rotary_factor": 1.5,)"),
            "partial_rotary_factor 1.5 must be above 0 and at most 1");
}

TEST_F(PretrainedRope, HasNamesOfItsOwnInGptNeoX) {
  const std::string sizes = R"("hidden_size": 128, "num_attention_heads": 8,)";
  const auto rope = [&](const std::string& fields) {
    return decoder("gpt_neox", sizes + fields).stack().block().attention().rotary().value();
  };
  EXPECT_EQ(rope(""), RotaryEmbeddingOptions(16).rotary_dim(4));
  const auto expected = RotaryEmbeddingOptions(16).rotary_dim(8).base(2e4);
  EXPECT_EQ(rope(R"("rotary_emb_base": 20000, "rotary_pct": 0.5,)"), expected);
  EXPECT_EQ(rope(R"("rotary_emb_base": 20000, "rotary_pct": 0.5, "rope_theta": 2e4,
                    "partial_rotary_factor": 0.5,)"),
            expected);
  EXPECT_EQ(rope(R"("rope_parameters": {"rope_theta": 2e4, "partial_rotary_factor": 0.5},)"),
            expected);
  EXPECT_EQ(error("gpt_neox", R"("rope_theta": 2e4,)"),
            "rope_theta 20000.0 must be 10000, by another field");
  EXPECT_EQ(error("gpt_neox", R"("rotary_pct": 0.5, "partial_rotary_factor": 0.25,)"),
            "partial_rotary_factor 0.25 must be 0.5, by another field");
}

/// Gemma 3, OLMo 3 and ModernBERT have one for global and one for local layers.
TEST_F(PretrainedRope, DiffersBetweenLayers) {
  const std::string sizes = R"("hidden_size": 64, "num_attention_heads": 4, "head_dim": 16,
      "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],)";
  const auto ropes = [&](const std::string& fields) {
    const auto blocks = decoder("gemma3_text", sizes + fields).stack().blocks();
    return std::pair(blocks.at(0).attention().rotary().value(),
                     blocks.at(1).attention().rotary().value());
  };
  const auto rope = [](double base) { return RotaryEmbeddingOptions(16).base(base); };
  EXPECT_EQ(ropes(""), std::pair(rope(1e4), rope(1e6)));
  EXPECT_EQ(ropes(R"("rope_theta": 2e6, "rope_local_base_freq": 2e4,)"),
            std::pair(rope(2e4), rope(2e6)));
  EXPECT_EQ(ropes(R"("rope_scaling": {"rope_type": "linear", "factor": 8.0},)"),
            std::pair(rope(1e4), rope(1e6).scaling(LinearScaling(8.0))));
  EXPECT_EQ(ropes(R"("rope_parameters": {
                       "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 3e6},
                       "sliding_attention": {"rope_type": "default", "rope_theta": 3e4}},)"),
            std::pair(rope(3e4), rope(3e6).scaling(LinearScaling(8.0))));
  EXPECT_EQ(ropes(R"("rope_parameters": {"full_attention": {"rope_theta": 3e6}},)"),
            std::pair(rope(1e4), rope(3e6)));
  EXPECT_EQ(error("gemma3_text", R"("rope_parameters": {"rope_theta": 1e6},)"),
            "rope_parameters.rope_theta 1000000.0 is not understood; it may change the numbers");
  EXPECT_EQ(error("gemma3_text", R"("rope_parameters": {"full_attention": {"rope_type": "x"}},)"),
            R"(rope_parameters.full_attention.rope_type "x" is not supported (default, linear, )"
            "dynamic, yarn, llama3, longrope)");

  const auto olmo = [&](const std::string& fields) {
    const auto stack = decoder("olmo3", R"("hidden_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],)" +
                                            fields)
                           .stack();
    return std::pair(stack.blocks().at(0).attention().rotary().value(),
                     stack.blocks().at(1).attention().rotary().value());
  };
  EXPECT_EQ(olmo(""), std::pair(rope(5e5), rope(5e5)));
  EXPECT_EQ(olmo(R"("rope_theta": 500000, "rope_scaling": {"rope_type": "linear", "factor": 8},)"),
            std::pair(rope(5e5), rope(5e5).scaling(LinearScaling(8.0))));
  EXPECT_EQ(olmo(R"("rope_parameters": {"full_attention": {"rope_theta": 3e6},
                                        "sliding_attention": {"rope_theta": 3e4}},)"),
            std::pair(rope(3e4), rope(3e6)));
  EXPECT_EQ(error("olmo3", R"("rope_theta": 1e4,)"),
            "rope_theta 10000.0 is not supported (500000, 500000.0)");

  const auto blocks = text_encoder("modernbert", R"("global_rope_theta": 2e5,
      "local_rope_theta": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0},)")
                          .stack()
                          .blocks();
  const auto scaled = [](double base) {
    return RotaryEmbeddingOptions(64).base(base).scaling(LinearScaling(2.0));
  };
  EXPECT_EQ(blocks.at(0).attention().rotary(), scaled(2e5));
  EXPECT_EQ(blocks.at(1).attention().rotary(), scaled(2e4));
}

}  // namespace
}  // namespace heed::test
