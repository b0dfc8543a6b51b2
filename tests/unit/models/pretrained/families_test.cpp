// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "unit/models/pretrained/pretrained_files.h"

namespace heed::test {
namespace {

class PretrainedFamily : public PretrainedFiles {
 protected:
  /// The only block, or the first of several.
  TransformerBlockOptions block(const std::string& type, const std::string& fields = "") const {
    return decoder(type, fields).stack().block();
  }
  std::vector<std::optional<int64_t>> windows(const std::string& type,
                                              const std::string& fields) const {
    return windows_of(decoder(type, fields).stack());
  }
  static std::vector<std::optional<int64_t>> windows_of(const EncoderOptions& stack) {
    std::vector<std::optional<int64_t>> windows;
    for (const auto& block : stack.blocks()) windows.push_back(block.attention().window());
    if (windows.empty()) windows = {stack.block().attention().window()};
    return windows;
  }
};

using Windows = std::vector<std::optional<int64_t>>;
constexpr std::nullopt_t kNone = std::nullopt;

TEST_F(PretrainedFamily, Llama) {
  const auto given = decoder("llama", R"("vocab_size": 99, "hidden_size": 64, "head_dim": 24,
      "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
      "num_key_value_heads": 2, "hidden_act": "gelu", "rms_norm_eps": 1e-5,
      "attention_bias": true, "mlp_bias": true, "attention_dropout": 0.25,
      "tie_word_embeddings": true,)");
  EXPECT_EQ(given.vocab_size(), 99);
  EXPECT_TRUE(given.tied_head());
  EXPECT_EQ(given.stack().num_layers(), 3);
  EXPECT_EQ(given.stack().final_norm(), true);
  const auto& block = given.stack().block();
  EXPECT_EQ(block.norm_eps(), 1e-5);
  EXPECT_EQ(block.attention().head_dim(), 24);
  EXPECT_EQ(block.attention().group_num(), 2);
  EXPECT_EQ(block.attention().dropout(), 0.25);
  EXPECT_TRUE(block.attention().input_bias());
  EXPECT_TRUE(block.attention().output_bias());
  EXPECT_EQ(block.feed_forward().activation(), Activation::geglu);
  EXPECT_EQ(block.feed_forward().hidden_dim(), 80);
  EXPECT_TRUE(block.feed_forward().bias());
  const auto null = this->block("llama", R"("num_key_value_heads": null, "head_dim": null,)");
  EXPECT_EQ(null.attention().group_num(), 32);
  EXPECT_EQ(null.attention().head_dim(), 128);
  EXPECT_EQ(error("llama", R"("hidden_size": 65, "num_attention_heads": 4,)"),
            "hidden_size 65 must be a multiple of num_attention_heads (4)");
}

TEST_F(PretrainedFamily, Mistral) {
  EXPECT_EQ(windows("mistral", ""), Windows({4096}));
  EXPECT_EQ(windows("mistral", R"("sliding_window": 7,)"), Windows({7}));
  EXPECT_EQ(windows("mistral", R"("sliding_window": null,)"), Windows({kNone}));
  EXPECT_EQ(block("mistral").attention().group_num(), 8);
  EXPECT_EQ(error("mistral", R"("num_key_value_heads": null,)"),
            "num_key_value_heads null must be a whole number from 1 to 2147483648");
  EXPECT_EQ(error("mistral", R"("attention_bias": false,)"),
            "attention_bias false is not understood; it may change the numbers");
}

TEST_F(PretrainedFamily, Qwen2AndQwen3) {
  const std::string layers = R"("num_hidden_layers": 3,)";
  for (const std::string type : {"qwen2", "qwen3"}) {
    EXPECT_EQ(windows(type, layers), Windows({kNone}));
    EXPECT_EQ(windows(type, layers + R"("sliding_window": 5, "max_window_layers": 1,)"),
              Windows({kNone}));
    const auto used = layers + R"("use_sliding_window": true, "sliding_window": 5,)";
    EXPECT_EQ(windows(type, used), Windows({kNone}));  // from layer 28 on
    EXPECT_EQ(windows(type, used + R"("max_window_layers": 1,)"), Windows({kNone, 5, 5}));
    const std::string types = R"("layer_types": ["sliding_attention", "full_attention",
        "full_attention"],)";
    EXPECT_EQ(windows(type, used + types), Windows({5, kNone, kNone}));
    EXPECT_EQ(error(type, layers + types + R"("use_sliding_window": false,)"),
              "use_sliding_window false must be true for layers with sliding_attention");
    EXPECT_EQ(
        error(type, layers + types + R"("use_sliding_window": true, "sliding_window": null,)"),
        "sliding_window null must be given for layers with sliding_attention");
    EXPECT_EQ(error(type, R"("layer_types": ["full_attention"],)"),
              R"(layer_types ["full_attention"] must have 32 elements, one for each layer)");
    EXPECT_EQ(error(type, R"("num_hidden_layers": 1, "layer_types": ["conv"],)"),
              R"(layer_types ["conv"] is not supported (full_attention, sliding_attention))");
  }
  const auto qwen2 = block("qwen2").attention(), qwen3 = block("qwen3").attention();
  EXPECT_TRUE(qwen2.input_bias());
  EXPECT_FALSE(qwen2.output_bias());
  EXPECT_FALSE(qwen2.qk_norm());
  EXPECT_EQ(qwen2.head_dim(), 128);
  EXPECT_FALSE(qwen3.input_bias());
  EXPECT_EQ(qwen3.qk_norm().value().eps(), 1e-6);
  EXPECT_FALSE(qwen3.qk_norm()->across_heads());
  EXPECT_EQ(block("qwen3", R"("rms_norm_eps": 1e-5,)").attention().qk_norm()->eps(), 1e-5);
  EXPECT_TRUE(block("qwen3", R"("attention_bias": true,)").attention().output_bias());
}

TEST_F(PretrainedFamily, Phi3) {
  const auto phi3 = block("phi3", R"("sliding_window": 7, "resid_pdrop": 0.25, "embd_pdrop": 0.5,
      "attention_bias": false,)");
  EXPECT_EQ(phi3.attention().window(), 7);
  EXPECT_EQ(phi3.dropout(), 0.25);
  EXPECT_EQ(phi3.norm_eps(), 1e-5);
  EXPECT_FALSE(block("phi3").attention().window());
  EXPECT_EQ(error("phi3", R"("attention_bias": true,)"),
            "attention_bias true is not supported (false)");
}

TEST_F(PretrainedFamily, StableLm) {
  const auto plain = block("stablelm");
  EXPECT_EQ(plain.norm(), NormKind::layer_norm);
  EXPECT_EQ(plain.norm_eps(), 1e-5);
  EXPECT_FALSE(plain.parallel());
  EXPECT_FALSE(plain.attention().input_bias());
  const auto other = block("stablelm", R"("use_parallel_residual": true, "use_qkv_bias": true,
      "layer_norm_eps": 1e-6, "hidden_dropout": 0.25,)");
  EXPECT_TRUE(other.parallel());
  EXPECT_TRUE(other.shared_norm());
  EXPECT_TRUE(other.attention().input_bias());
  EXPECT_FALSE(other.attention().output_bias());
  EXPECT_EQ(other.norm_eps(), 1e-6);
  EXPECT_EQ(other.dropout(), 0.0);
  EXPECT_EQ(other.feed_forward_dropout(), 0.25);
  EXPECT_EQ(error("stablelm", R"("qk_layernorm": true,)"),
            "qk_layernorm true is not supported (false)");
  EXPECT_EQ(error("stablelm", R"("head_dim": 80,)"), "head_dim 80 is not supported (null)");
}

TEST_F(PretrainedFamily, Gpt2) {
  const auto plain = decoder("gpt2");
  EXPECT_EQ(plain.vocab_size(), 50257);
  EXPECT_TRUE(plain.tied_head());
  EXPECT_EQ(plain.dropout(), 0.1);
  EXPECT_EQ(plain.positions().value().kind(), PositionKind::learned);
  EXPECT_EQ(plain.positions()->max_length(), 1024);
  EXPECT_EQ(plain.stack().num_layers(), 12);
  EXPECT_FALSE(plain.stack().block().attention().scale());
  EXPECT_EQ(plain.stack().block().feed_forward().activation(), Activation::gelu_tanh);
  EXPECT_FALSE(plain.stack().block().feed_forward().hidden_dim());
  const std::string sizes = R"("n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 9,)";
  const auto other = decoder("gpt2", sizes + R"("n_inner": 80, "activation_function": "relu",
      "attn_pdrop": 0.2, "resid_pdrop": 0.3, "embd_pdrop": 0.4, "layer_norm_epsilon": 1e-6,
      "scale_attn_weights": false, "tie_word_embeddings": false, "n_ctx": 9,)");
  EXPECT_FALSE(other.tied_head());
  EXPECT_EQ(other.dropout(), 0.4);
  const auto& block = other.stack().block();
  EXPECT_EQ(block.attention().scale(), 1.0);
  EXPECT_EQ(block.attention().dropout(), 0.2);
  EXPECT_EQ(block.dropout(), 0.3);
  EXPECT_EQ(block.norm_eps(), 1e-6);
  EXPECT_EQ(block.feed_forward().hidden_dim(), 80);
  EXPECT_EQ(block.feed_forward().activation(), Activation::relu);
  const auto blocks =
      decoder("gpt2", sizes + R"("scale_attn_by_inverse_layer_idx": true,)").stack().blocks();
  EXPECT_EQ(blocks.at(0).attention().scale(), 0.25);
  EXPECT_EQ(blocks.at(1).attention().scale(), 0.125);
  EXPECT_EQ(error("gpt2", R"("add_cross_attention": true,)"),
            "add_cross_attention true is not supported (false)");
}

TEST_F(PretrainedFamily, GptNeoX) {
  const auto plain = decoder("gpt_neox", R"("hidden_dropout": 0.25,)");
  EXPECT_EQ(plain.dropout(), 0.25);
  EXPECT_FALSE(plain.tied_head());
  const auto& block = plain.stack().block();
  EXPECT_TRUE(block.parallel());
  EXPECT_FALSE(block.shared_norm());
  EXPECT_EQ(block.dropout(), 0.25);
  EXPECT_TRUE(block.attention().input_bias());
  EXPECT_EQ(block.feed_forward().activation(), Activation::gelu);
  const auto other = this->block("gpt_neox", R"("use_parallel_residual": false,
      "attention_bias": false, "layer_norm_eps": 1e-6, "hidden_act": "gelu_fast",)");
  EXPECT_FALSE(other.parallel());
  EXPECT_FALSE(other.attention().output_bias());
  EXPECT_TRUE(other.feed_forward().bias());
  EXPECT_EQ(other.norm_eps(), 1e-6);
  EXPECT_EQ(other.feed_forward().activation(), Activation::gelu_tanh);
}

TEST_F(PretrainedFamily, Gemma) {
  const auto gemma = decoder("gemma", R"("hidden_size": 64,)");
  EXPECT_EQ(gemma.embedding_scale(), 8.0);
  EXPECT_TRUE(gemma.tied_head());
  EXPECT_FALSE(gemma.softcap());
  const auto& block = gemma.stack().block();
  EXPECT_TRUE(block.norm_unit_offset());
  EXPECT_EQ(block.norm_placement(), NormPlacement::pre);
  EXPECT_EQ(block.attention().head_dim(), 256);
  const auto activation = [&](const std::string& name) {
    return this->block("gemma", R"("hidden_act": ")" + name + "\",").feed_forward().activation();
  };
  EXPECT_EQ(block.feed_forward().activation(), Activation::geglu_tanh);
  EXPECT_EQ(activation("gelu"), Activation::geglu_tanh);
  EXPECT_EQ(activation("gelu_python"), Activation::geglu);
  EXPECT_EQ(activation("silu"), Activation::swiglu);
  for (const std::string type : {"gemma", "gemma2", "gemma3_text"}) {
    EXPECT_EQ(error(type, R"("use_bidirectional_attention": true,)"),
              "use_bidirectional_attention true is not supported (false, null)");
    EXPECT_EQ(error(type, R"("head_dim": null,)"),
              "head_dim null must be a whole number from 1 to 2147483648");
  }
}

TEST_F(PretrainedFamily, MixturesOfExperts) {
  const auto experts = [&](const std::string& type, const std::string& fields = "") {
    return std::get<MixtureOfExpertsOptions>(block(type, fields).feed_forward_layer());
  };
  const auto mixtral = experts("mixtral");
  EXPECT_EQ(mixtral.expert_num(), 8);
  EXPECT_EQ(mixtral.top_k(), 2);
  EXPECT_TRUE(mixtral.normalize());
  EXPECT_EQ(mixtral.expert().hidden_dim(), 14336);
  EXPECT_EQ(block("mixtral").attention().rotary()->base(), 1e6);
  EXPECT_EQ(windows("mixtral", R"("sliding_window": 9,)"), Windows({9}));
  const auto olmoe = experts("olmoe");
  EXPECT_EQ(olmoe.expert_num(), 64);
  EXPECT_EQ(olmoe.top_k(), 8);
  EXPECT_FALSE(olmoe.normalize());
  EXPECT_TRUE(block("olmoe").attention().qk_norm()->across_heads());
  const auto qwen2 = experts("qwen2_moe");
  EXPECT_EQ(qwen2.shared()->hidden_dim(), 5632);
  EXPECT_TRUE(qwen2.shared_gate());
  EXPECT_EQ(qwen2.expert().hidden_dim(), 1408);
  EXPECT_EQ(windows("qwen2_moe", R"("num_hidden_layers": 4, "use_sliding_window": true,
      "sliding_window": 5, "max_window_layers": 2,)"),
            Windows({5, kNone, kNone, kNone}));
  const auto qwen3 = experts("qwen3_moe", R"("norm_topk_prob": true, "num_local_experts": 16,)");
  EXPECT_TRUE(qwen3.normalize());
  EXPECT_EQ(qwen3.expert_num(), 16);
  EXPECT_EQ(windows("qwen3_moe", R"("num_hidden_layers": 2, "use_sliding_window": true,)"),
            Windows({4096, 4096}));
}

TEST_F(PretrainedFamily, GptOss) {
  const auto options = decoder("gpt_oss");
  EXPECT_EQ(options.vocab_size(), 201088);
  EXPECT_FALSE(options.tied_head());
  const auto own = block("gpt_oss");
  const auto& attention = own.attention();
  EXPECT_TRUE(attention.sinks() && attention.input_bias() && attention.output_bias());
  EXPECT_EQ(attention.head_dim(), 64);
  EXPECT_EQ(*attention.rotary(),
            RotaryEmbeddingOptions(64).base(150000.0).scaling(
                YarnScaling(32.0, 4096).beta_fast(32.0).beta_slow(1.0).truncate(false)));
  const auto mixture = std::get<MixtureOfExpertsOptions>(own.feed_forward_layer());
  EXPECT_EQ(mixture.expert_num(), 128);
  EXPECT_EQ(mixture.top_k(), 4);
  EXPECT_TRUE(mixture.router_bias() && mixture.normalize() && mixture.expert().bias());
  EXPECT_EQ(mixture.expert().swiglu_beta(), 1.702);
  EXPECT_EQ(mixture.expert().swiglu_limit(), 7.0);
  EXPECT_EQ(mixture.expert().swiglu_offset(), 1.0);
  EXPECT_EQ(windows("gpt_oss", R"("num_hidden_layers": 4,)"), Windows({128, kNone, 128, kNone}));
  // The published config.json without its quantization_config.
  EXPECT_EQ(windows("gpt_oss", R"("num_hidden_layers": 2, "experts_per_token": 4,
      "initial_context_length": 4096, "rope_theta": 150000, "rope_scaling": {"beta_fast": 32.0,
      "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
      "rope_type": "yarn", "truncate": false}, "swiglu_limit": 7.0, "sliding_window": 128,)"),
            Windows({128, kNone}));
}

TEST_F(PretrainedFamily, GptOssIsRefusedWhereItDiffers) {
  const auto of = [&](const std::string& fields) { return error("gpt_oss", fields + ","); };
  EXPECT_EQ(of(R"("hidden_act": "gelu")"), R"(hidden_act "gelu" is not supported ("silu"))");
  EXPECT_EQ(of(R"("swiglu_limit": 0)"), "swiglu_limit 0 must be above 0");
  EXPECT_EQ(of(R"("experts_per_token": 2)"),
            "experts_per_token 2 must equal num_experts_per_tok (4)");
  EXPECT_EQ(of(R"("initial_context_length": 512)"),
            "initial_context_length 512 must equal original_max_position_embeddings (4096)");
  EXPECT_EQ(of(R"("rope_scaling": null)"), "rope_scaling null must have fields");
  EXPECT_EQ(of(R"("rope_parameters": {})"), "rope_parameters {} must have fields");
  EXPECT_EQ(of(R"("sliding_window": null)"),
            "sliding_window null must be given for layers with sliding_attention");
  EXPECT_EQ(of(R"("quantization_config": {"quant_method": "mxfp4"})"),
            R"(quantization_config {"quant_method":"mxfp4"} is of MXFP4 weights, which heed does )"
            "not read: convert them to bfloat16, as transformers does with "
            "Mxfp4Config(dequantize=True) and save_pretrained");
}

TEST_F(PretrainedFamily, MixturesOfExpertsAreRefusedWhereTheyDiffer) {
  EXPECT_EQ(error("mixtral", R"("num_experts_per_tok": 9,)"),
            "num_experts_per_tok 9 must be at most the number of experts (8)");
  EXPECT_EQ(error("qwen3_moe", R"("num_experts": 8, "num_local_experts": 9,)"),
            "num_experts 8 must equal num_local_experts (9)");
  EXPECT_EQ(error("qwen3_moe", R"("mlp_only_layers": [24],)"),
            "mlp_only_layers [24] must be below num_hidden_layers (24)");
  EXPECT_EQ(error("qwen3_moe", R"("decoder_sparse_step": 0,)"),
            "decoder_sparse_step 0 must be a whole number from 1 to 2147483647");
  EXPECT_EQ(error("mixtral", R"("router_jitter_noise": 0.1,)"),
            "router_jitter_noise 0.1 is not supported (0.0, 0)");
  EXPECT_EQ(error("olmoe", R"("clip_qkv": 8.0,)"), "clip_qkv 8.0 is not supported (null)");
  EXPECT_EQ(error("qwen2_moe", R"("num_hidden_layers": 1, "layer_types": ["sliding_attention"],)"),
            "use_sliding_window must be true for layers with sliding_attention");
}

TEST_F(PretrainedFamily, DeepSeek) {
  const auto v2 = decoder("deepseek_v2", R"("num_experts_per_tok": 6, "num_hidden_layers": 2,
      "first_k_dense_replace": 1, "topk_method": "group_limited_greedy", "n_group": 8,
      "topk_group": 3, "attention_bias": true, "mlp_bias": true, "attention_dropout": 0.25,)");
  const auto& blocks = v2.stack().blocks();
  EXPECT_TRUE(blocks.at(0).feed_forward().bias());
  const auto attention = std::get<LatentAttentionOptions>(blocks.at(0).attention_layer());
  EXPECT_EQ(attention.head_num(), 32);
  EXPECT_EQ(attention.key_rank(), 512);
  EXPECT_EQ(attention.query_rank(), 1536);
  EXPECT_EQ(attention.norm_eps(), 1e-6);
  EXPECT_EQ(attention.dropout(), 0.25);
  EXPECT_TRUE(attention.bias());
  EXPECT_EQ(attention.rotary(), RotaryEmbeddingOptions(64).pairing(RotaryPairing::interleaved));
  const auto old = std::get<MixtureOfExpertsOptions>(blocks.at(1).feed_forward_layer());
  EXPECT_EQ(old.expert().hidden_dim(), 1407);
  EXPECT_FALSE(old.expert().bias());
  EXPECT_EQ(old.shared()->hidden_dim(), 2 * 1407);
  EXPECT_TRUE(old.shared()->bias());
  EXPECT_EQ(old.top_groups(), 3);
  EXPECT_EQ(old.group_best(), 1);
  EXPECT_FALSE(old.normalize() || old.choice_bias());
  const auto v3 = decoder("deepseek_v3", R"("num_hidden_layers": 4, "rope_interleave": false,)");
  EXPECT_EQ(v3.stack().blocks().at(2).feed_forward().hidden_dim(), 18432);
  const auto& last = v3.stack().blocks().at(3);
  EXPECT_EQ(std::get<LatentAttentionOptions>(last.attention_layer()).rotary(),
            RotaryEmbeddingOptions(64));
  const auto experts = std::get<MixtureOfExpertsOptions>(last.feed_forward_layer());
  EXPECT_EQ(experts.score(), ExpertScore::sigmoid);
  EXPECT_EQ(experts.group_num(), 8);
  EXPECT_EQ(experts.top_groups(), 4);
  EXPECT_EQ(experts.group_best(), 2);
  EXPECT_EQ(experts.scale(), 2.5);
  EXPECT_TRUE(experts.normalize() && experts.choice_bias());
}

TEST_F(PretrainedFamily, DeepSeekIsRefusedWhereItDiffers) {
  constexpr auto kV2 = "deepseek_v2", kV3 = "deepseek_v3";
  const auto of_v2 = [&](const std::string& field) {
    return error(kV2, R"("num_experts_per_tok": 6, )" + field + ",");
  };
  EXPECT_EQ(error(kV2, ""), "num_experts_per_tok must be there");
  EXPECT_EQ(of_v2(R"("topk_method": "noaux_tc")"),
            R"(topk_method "noaux_tc" is not supported (greedy, group_limited_greedy))");
  EXPECT_EQ(of_v2(R"("topk_method": "group_limited_greedy")"), "n_group must be there");
  EXPECT_EQ(of_v2(R"("norm_topk_prob": true)"),
            "norm_topk_prob true is not supported (false, null)");
  EXPECT_EQ(of_v2(R"("num_key_value_heads": 8)"),
            "num_key_value_heads 8 must equal num_attention_heads (32)");
  EXPECT_EQ(error(kV3, R"("n_group": 7,)"), "n_routed_experts must be a multiple of n_group (7)");
  EXPECT_EQ(error(kV3, R"("topk_group": 9,)"), "topk_group 9 must be at most n_group (8)");
  EXPECT_EQ(
      error(kV3, R"("topk_group": 1, "num_experts_per_tok": 33,)"),
      "num_experts_per_tok 33 must be at most 32, the experts of topk_group of the n_group groups");
  EXPECT_EQ(error(kV3, R"("n_group": 256, "num_experts_per_tok": 4,)"),
            "n_group 256 must leave at least 2 experts for each group");
  EXPECT_EQ(error(kV3, R"("head_dim": 128,)"), "head_dim 128 must equal qk_rope_head_dim (64)");
  EXPECT_EQ(error(kV3, R"("scoring_func": "softmax",)"),
            R"(scoring_func "softmax" is not supported ("sigmoid"))");
}

TEST_F(PretrainedFamily, Gemma2) {
  const auto gemma = decoder("gemma2", R"("num_hidden_layers": 3,)");
  EXPECT_EQ(gemma.softcap(), 30.0);
  EXPECT_EQ(windows_of(gemma.stack()), Windows({4096, kNone, 4096}));
  const auto& block = gemma.stack().block();
  EXPECT_EQ(block.norm_placement(), NormPlacement::sandwich);
  EXPECT_TRUE(block.norm_unit_offset());
  EXPECT_EQ(block.attention().softcap(), 50.0);
  EXPECT_EQ(block.attention().scale(), 1.0 / 16.0);
  const auto other = decoder("gemma2", R"("final_logit_softcapping": null,
      "attn_logit_softcapping": null, "query_pre_attn_scalar": 64, "hidden_activation": "silu",
      "hidden_act": "gelu_pytorch_tanh", "num_hidden_layers": 2, "sliding_window": 9,
      "layer_types": ["full_attention", "sliding_attention"],)");
  EXPECT_FALSE(other.softcap());
  EXPECT_EQ(windows_of(other.stack()), Windows({kNone, 9}));
  EXPECT_FALSE(other.stack().block().attention().softcap());
  EXPECT_EQ(other.stack().block().attention().scale(), 1.0 / 8.0);
  EXPECT_EQ(other.stack().block().feed_forward().activation(), Activation::swiglu);
  EXPECT_EQ(error("gemma2", R"("sliding_window": null,)"),
            "sliding_window null must be given for layers with sliding_attention");
}

TEST_F(PretrainedFamily, Gemma3) {
  const auto gemma = decoder("gemma3_text", R"("sliding_window_pattern": 2, "sliding_window": 5,
      "num_hidden_layers": 4, "query_pre_attn_scalar": 16, "_sliding_window_pattern": 6,)");
  EXPECT_FALSE(gemma.softcap());
  EXPECT_EQ(windows_of(gemma.stack()), Windows({5, kNone, 5, kNone}));
  const auto& block = gemma.stack().block();
  EXPECT_EQ(block.norm_placement(), NormPlacement::sandwich);
  EXPECT_EQ(block.attention().scale(), 0.25);
  EXPECT_TRUE(block.attention().qk_norm().value().unit_offset());
  EXPECT_EQ(windows("gemma3_text", R"("num_hidden_layers": 6,)"),
            Windows({4096, 4096, 4096, 4096, 4096, kNone}));
  EXPECT_EQ(decoder("gemma3_text", R"("final_logit_softcapping": 20,)").softcap(), 20.0);
  EXPECT_EQ(error("gemma3_text", R"("attn_logit_softcapping": 50.0,)"),
            "attn_logit_softcapping 50.0 is not supported (null)");
}

TEST_F(PretrainedFamily, Gemma3OfFoldersWithImages) {
  const auto gemma = family("gemma3", R"("tie_word_embeddings": false, "mm_tokens_per_image": 256,
      "vision_config": {"hidden_size": 8, "rope_theta": 3.0}, "image_token_index": 262144,
      "eos_token_id": [1, 106], "text_config": {"model_type": "gemma3_text",
        "num_hidden_layers": 2, "sliding_window": 5, "sliding_window_pattern": 2,
        "tie_word_embeddings": true, "use_cache": true, "torch_dtype": "bfloat16"},)");
  const auto options = std::get<DecoderOptions>(gemma.options);
  EXPECT_FALSE(options.tied_head());  // the text's own field is not used
  EXPECT_EQ(windows_of(options.stack()), Windows({5, kNone}));
  EXPECT_EQ(gemma.part.value().field, "text_config");
  EXPECT_EQ(gemma.part->model_type, "gemma3_text");
  EXPECT_EQ(gemma.part->tied_head, false);
  EXPECT_TRUE(decoder("gemma3").tied_head());
  EXPECT_EQ(decoder("gemma3").vocab_size(), 262208);
  EXPECT_FALSE(family("gemma3_text", "").part);
  const auto text_error = [&](const std::string& fields) {
    return error("gemma3", R"("text_config": {)" + fields + "},");
  };
  EXPECT_EQ(text_error(R"("final_logit_softcapping": 30.0)"),
            "text_config.final_logit_softcapping 30.0 is not supported (null)");
  EXPECT_EQ(text_error(R"("model_type": "gemma2")"),
            R"(text_config.model_type "gemma2" is not supported ("gemma3_text"))");
  EXPECT_EQ(text_error(R"("is_encoder_decoder": true)"),
            "text_config.is_encoder_decoder true is not supported (false)");
  EXPECT_EQ(error("gemma3", R"("text_config": [],)"), "text_config [] must be an object");
  EXPECT_EQ(error("gemma3", R"("hidden_size": 64,)"),
            "hidden_size 64 is not understood; it may change the numbers");
}

TEST_F(PretrainedFamily, Olmo2) {
  const auto olmo = decoder("olmo2", R"("rms_norm_eps": 1e-6,)");
  EXPECT_EQ(olmo.stack().final_norm(), true);
  const auto& block = olmo.stack().block();
  EXPECT_EQ(block.norm_placement(), NormPlacement::output);
  EXPECT_TRUE(block.attention().qk_norm().value().across_heads());
  EXPECT_EQ(block.attention().qk_norm()->eps(), 1e-6);
}

TEST_F(PretrainedFamily, Olmo3) {
  const auto olmo = decoder("olmo3", R"("num_hidden_layers": 5,)");
  EXPECT_EQ(windows_of(olmo.stack()), Windows({4096, 4096, 4096, kNone, 4096}));
  const auto& block = olmo.stack().block();
  EXPECT_EQ(block.norm_placement(), NormPlacement::output);
  EXPECT_EQ(block.norm_eps(), 1e-5);
  EXPECT_TRUE(block.attention().qk_norm().value().across_heads());
  EXPECT_EQ(windows("olmo3", R"("num_hidden_layers": 2, "sliding_window": 7,
                                "layer_types": ["full_attention", "sliding_attention"],)"),
            Windows({kNone, 7}));
  EXPECT_EQ(error("olmo3", R"("sliding_window": null,)"),
            "sliding_window null must be given for layers with sliding_attention");
}

TEST_F(PretrainedFamily, Starcoder2) {
  const auto plain = decoder("starcoder2", R"("embedding_dropout": 0.125,
      "residual_dropout": 0.25, "mlp_type": "default", "norm_type": "layer_norm",)");
  EXPECT_EQ(plain.vocab_size(), 49152);
  EXPECT_TRUE(plain.tied_head());
  EXPECT_EQ(plain.dropout(), 0.125);
  const auto& block = plain.stack().block();
  EXPECT_EQ(block.norm(), NormKind::layer_norm);
  EXPECT_TRUE(block.norm_bias());
  EXPECT_EQ(block.norm_eps(), 1e-5);
  EXPECT_EQ(block.dropout(), 0.25);
  EXPECT_TRUE(block.attention().input_bias());
  EXPECT_TRUE(block.attention().output_bias());
  EXPECT_EQ(block.attention().group_num(), 2);
  EXPECT_FALSE(block.attention().window());
  EXPECT_EQ(block.feed_forward().activation(), Activation::gelu_tanh);
  EXPECT_TRUE(block.feed_forward().bias());
  const auto other = this->block("starcoder2", R"("use_bias": false, "hidden_act": "relu",
      "norm_epsilon": 1e-6, "sliding_window": 7, "head_dim": null,)");
  EXPECT_FALSE(other.attention().input_bias());
  EXPECT_FALSE(other.attention().output_bias());
  EXPECT_FALSE(other.feed_forward().bias());
  EXPECT_EQ(other.feed_forward().activation(), Activation::relu);
  EXPECT_EQ(other.norm_eps(), 1e-6);
  EXPECT_EQ(other.attention().window(), 7);
  EXPECT_EQ(other.attention().head_dim(), 128);
  EXPECT_EQ(error("starcoder2", R"("mlp_type": "gated",)"),
            R"(mlp_type "gated" is not supported ("default"))");
}

TEST_F(PretrainedFamily, Cohere2) {
  const auto plain = decoder("cohere2", R"("num_hidden_layers": 5,)");
  EXPECT_EQ(plain.scores_scale(), 0.0625);
  EXPECT_TRUE(plain.tied_head());
  EXPECT_EQ(windows_of(plain.stack()), Windows({4096, 4096, 4096, kNone, 4096}));
  const auto& block = plain.stack().blocks().at(0);
  EXPECT_EQ(block.norm(), NormKind::layer_norm);
  EXPECT_FALSE(block.norm_bias());
  EXPECT_TRUE(block.parallel());
  EXPECT_TRUE(block.shared_norm());
  EXPECT_EQ(block.attention().rotary(),
            RotaryEmbeddingOptions(128).pairing(RotaryPairing::interleaved));
  EXPECT_FALSE(plain.stack().blocks().at(3).attention().rotary());
  EXPECT_FALSE(block.feed_forward().bias());
  const auto other = decoder("cohere2", R"("num_hidden_layers": 2, "logit_scale": 0.25,
      "sliding_window": 5, "sliding_window_pattern": 2, "layer_switch": 2, "attention_bias": true,
      "layer_norm_eps": 1e-6, "head_dim": 64, "order_of_interleaved_layers": "local_attn_first",
      "position_embedding_type": "rope_gptj", "rotary_pct": 1.0, "use_embedding_sharing": true,
      "use_gated_activation": true, "use_parallel_block": true, "use_parallel_embedding": true,)");
  EXPECT_EQ(other.scores_scale(), 0.25);
  EXPECT_EQ(windows_of(other.stack()), Windows({5, kNone}));
  EXPECT_TRUE(other.stack().block().attention().output_bias());
  EXPECT_EQ(other.stack().block().attention().head_dim(), 64);
  EXPECT_EQ(other.stack().block().norm_eps(), 1e-6);
  EXPECT_EQ(error("cohere2", R"("layer_switch": 3,)"),
            "layer_switch 3 must equal sliding_window_pattern (4)");
  EXPECT_EQ(error("cohere2", R"("logit_scale": 0,)"), "logit_scale 0 must not be 0");
  EXPECT_EQ(error("cohere2", R"("use_parallel_block": false,)"),
            "use_parallel_block false is not supported (true)");
  EXPECT_EQ(error("cohere2", R"("sliding_window": null,)"),
            "sliding_window null must be given for layers with sliding_attention");
}

TEST_F(PretrainedFamily, Granite) {
  const auto plain = decoder("granite");
  EXPECT_EQ(plain.embedding_scale(), 1.0);
  EXPECT_EQ(plain.scores_scale(), 1.0);
  EXPECT_FALSE(plain.tied_head());
  EXPECT_EQ(plain.stack().block().residual_scale(), 1.0);
  EXPECT_EQ(plain.stack().block().attention().scale(), 1.0);
  EXPECT_EQ(plain.stack().block().attention().group_num(), 32);
  const auto other = decoder("granite", R"("embedding_multiplier": 12.0, "logits_scaling": 16.0,
      "residual_multiplier": 0.22, "attention_multiplier": 0.0078125, "attention_bias": true,
      "mlp_bias": true, "head_dim": 24, "num_key_value_heads": null,)");
  EXPECT_EQ(other.embedding_scale(), 12.0);
  EXPECT_EQ(other.scores_scale(), 0.0625);
  const auto& block = other.stack().block();
  EXPECT_EQ(block.residual_scale(), 0.22);
  EXPECT_EQ(block.attention().scale(), 0.0078125);
  EXPECT_EQ(block.attention().head_dim(), 24);
  EXPECT_TRUE(block.attention().output_bias());
  EXPECT_TRUE(block.feed_forward().bias());
  for (const std::string name :
       {"embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"}) {
    EXPECT_EQ(error("granite", '"' + name + R"(": 0.0,)"), name + " 0.0 must not be 0");
    EXPECT_EQ(error("granite", '"' + name + R"(": null,)"), name + " null must be a finite number");
  }
}

TEST_F(PretrainedFamily, Glm4) {
  const auto plain = decoder("glm4");
  EXPECT_EQ(plain.vocab_size(), 151552);
  EXPECT_FALSE(plain.tied_head());
  const auto& block = plain.stack().block();
  EXPECT_EQ(block.norm_placement(), NormPlacement::sandwich);
  EXPECT_EQ(block.norm_eps(), 1.5625e-7);
  EXPECT_FALSE(block.norm_unit_offset());
  EXPECT_EQ(block.attention().group_num(), 2);
  EXPECT_TRUE(block.attention().input_bias());
  EXPECT_FALSE(block.attention().output_bias());
  EXPECT_FALSE(block.feed_forward().bias());
  EXPECT_EQ(block.attention().rotary(),
            RotaryEmbeddingOptions(128).rotary_dim(64).pairing(RotaryPairing::interleaved));
  const auto other = this->block("glm4", R"("attention_bias": false, "head_dim": 64,
      "rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 1.0},)");
  EXPECT_FALSE(other.attention().input_bias());
  EXPECT_EQ(other.attention().rotary(),
            RotaryEmbeddingOptions(64).base(500.0).pairing(RotaryPairing::interleaved));
}

TEST_F(PretrainedFamily, SmolLm3) {
  const auto rotated = [&](const std::string& fields) {
    std::vector<bool> rotated;
    const auto stack = decoder("smollm3", R"("num_hidden_layers": 4,)" + fields).stack();
    for (const auto& block : stack.blocks())
      rotated.push_back(block.attention().rotary().has_value());
    return rotated;
  };
  EXPECT_EQ(rotated(""), std::vector({true, true, true, false}));
  EXPECT_EQ(rotated(R"("no_rope_layer_interval": 2,)"), std::vector({true, false, true, false}));
  EXPECT_EQ(rotated(R"("no_rope_layers": [0, 0, 1, 1],)"), std::vector({false, false, true, true}));
  EXPECT_EQ(windows("smollm3", R"("num_hidden_layers": 4, "use_sliding_window": true,
                                  "sliding_window": 5,)"),
            Windows({kNone, kNone, kNone, 5}));
  EXPECT_EQ(error("smollm3", R"("no_rope_layers": [1],)"),
            "no_rope_layers [1] must have 36 elements, one for each layer");
  EXPECT_EQ(error("smollm3", R"("num_hidden_layers": 1, "no_rope_layers": [2],)"),
            "no_rope_layers [2] must hold 0 and 1");
}

TEST_F(PretrainedFamily, BertAndRoberta) {
  const auto bert = text_encoder("bert", R"("position_embedding_type": "absolute",)");
  EXPECT_EQ(bert.vocab_size(), 30522);
  EXPECT_EQ(bert.type_vocab_size(), 2);
  EXPECT_EQ(bert.positions().value().max_length(), 512);
  EXPECT_TRUE(bert.embedding_norm());
  EXPECT_EQ(bert.dropout(), 0.1);
  EXPECT_FALSE(bert.padding_token());
  const auto& block = bert.stack().block();
  EXPECT_EQ(block.norm_placement(), NormPlacement::post);
  EXPECT_EQ(block.norm_eps(), 1e-12);
  EXPECT_EQ(block.dropout(), 0.1);
  EXPECT_EQ(block.attention().dropout(), 0.1);
  EXPECT_FALSE(block.attention().causal());
  EXPECT_EQ(block.feed_forward().activation(), Activation::gelu);
  EXPECT_EQ(block.feed_forward().hidden_dim(), 3072);
  const auto roberta = text_encoder("roberta", R"("type_vocab_size": 1, "pad_token_id": 3,
      "hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.0,)");
  EXPECT_EQ(roberta.vocab_size(), 50265);
  EXPECT_EQ(roberta.padding_token(), 3);
  EXPECT_EQ(roberta.type_vocab_size(), 1);
  EXPECT_EQ(roberta.dropout(), 0.25);
  EXPECT_EQ(text_encoder("roberta").padding_token(), 1);
  EXPECT_EQ(error("roberta", R"("pad_token_id": null,)"),
            "pad_token_id null must be a whole number from 0 to 2147483647");
  EXPECT_EQ(error("bert", R"("position_embedding_type": "relative_key",)"),
            R"(position_embedding_type "relative_key" is not supported ("absolute"))");
}

TEST_F(PretrainedFamily, XlmRobertaAndCamembert) {
  for (const std::string type : {"xlm-roberta", "camembert"}) {
    EXPECT_EQ(text_encoder(type).vocab_size(), 30522);
    EXPECT_EQ(text_encoder(type).padding_token(), 1);
    EXPECT_EQ(text_encoder(type, R"("pad_token_id": 3, "output_past": true,)").padding_token(), 3);
    EXPECT_EQ(text_encoder(type).stack().block().norm_placement(), NormPlacement::post);
  }
}

TEST_F(PretrainedFamily, Electra) {
  const auto plain = text_encoder("electra", R"("summary_type": "first",
      "summary_use_proj": true, "summary_activation": "gelu", "summary_last_dropout": 0.1,)");
  EXPECT_EQ(plain.vocab_size(), 30522);
  EXPECT_EQ(plain.embedding_dim(), 128);
  EXPECT_EQ(plain.positions().value().emb_dim(), 128);
  EXPECT_EQ(plain.type_vocab_size(), 2);
  EXPECT_FALSE(plain.padding_token());
  const auto& block = plain.stack().block();
  EXPECT_EQ(block.attention().emb_dim(), 256);
  EXPECT_EQ(block.attention().head_num(), 4);
  EXPECT_EQ(block.feed_forward().hidden_dim(), 1024);
  const auto wide = text_encoder("electra", R"("embedding_size": 256,)");
  EXPECT_FALSE(wide.embedding_dim());
  EXPECT_EQ(wide.positions()->emb_dim(), 256);
  EXPECT_EQ(error("bert", R"("embedding_size": 128,)"),
            "embedding_size 128 is not understood; it may change the numbers");
}

TEST_F(PretrainedFamily, DistilBert) {
  const auto distilbert = text_encoder("distilbert", R"("sinusoidal_pos_embds": true,
      "dropout": 0.25, "dim": 64, "n_heads": 4, "n_layers": 3, "hidden_dim": 80,)");
  EXPECT_EQ(distilbert.type_vocab_size(), 0);
  EXPECT_EQ(distilbert.positions().value().kind(), PositionKind::learned);
  EXPECT_EQ(distilbert.dropout(), 0.25);
  EXPECT_EQ(distilbert.stack().num_layers(), 3);
  const auto& block = distilbert.stack().block();
  EXPECT_EQ(block.norm_placement(), NormPlacement::post);
  EXPECT_EQ(block.norm_eps(), 1e-12);
  EXPECT_EQ(block.dropout(), 0.0);
  EXPECT_EQ(block.feed_forward_dropout(), 0.25);
  EXPECT_EQ(block.attention().dropout(), 0.1);
  EXPECT_EQ(block.feed_forward().hidden_dim(), 80);
}

TEST_F(PretrainedFamily, ModernBert) {
  const auto modernbert = text_encoder("modernbert", R"("num_hidden_layers": 4,
      "attention_dropout": 0.25, "mlp_dropout": 0.5, "embedding_dropout": 0.125,
      "layer_norm_eps": 1e-3,)");
  EXPECT_FALSE(modernbert.positions());
  EXPECT_TRUE(modernbert.embedding_norm());
  EXPECT_EQ(modernbert.dropout(), 0.125);
  EXPECT_EQ(windows_of(modernbert.stack()), Windows({kNone, 65, 65, kNone}));
  const auto& blocks = modernbert.stack().blocks();
  EXPECT_FALSE(blocks.at(0).attention_norm());
  EXPECT_TRUE(blocks.at(1).attention_norm());
  EXPECT_EQ(blocks.at(1).norm_eps(), 1e-5);
  EXPECT_FALSE(blocks.at(1).norm_bias());
  EXPECT_EQ(blocks.at(1).dropout(), 0.25);
  EXPECT_EQ(blocks.at(1).feed_forward_dropout(), 0.0);
  EXPECT_EQ(blocks.at(1).attention().dropout(), 0.25);
  EXPECT_FALSE(blocks.at(1).attention().input_bias());
  EXPECT_EQ(blocks.at(1).feed_forward().dropout(), 0.5);
  EXPECT_EQ(blocks.at(1).feed_forward().activation(), Activation::geglu);
  EXPECT_FALSE(blocks.at(1).feed_forward().bias());
  const auto other = text_encoder("modernbert", R"("num_hidden_layers": 3, "local_attention": 7,
      "global_attn_every_n_layers": 2, "norm_bias": true, "mlp_bias": true,
      "attention_bias": true,)");
  EXPECT_EQ(windows_of(other.stack()), Windows({kNone, 4, kNone}));
  EXPECT_TRUE(other.stack().block().norm_bias());
  EXPECT_TRUE(other.stack().block().feed_forward().bias());
  EXPECT_TRUE(other.stack().block().attention().output_bias());
}

TEST_F(PretrainedFamily, Vit) {
  const auto vit = [&](const std::string& fields) {
    return std::get<ImageEncoderOptions>(family("vit", fields).options);
  };
  EXPECT_EQ(vit("").image_size(), 224);
  EXPECT_EQ(vit("").patch_size(), 16);
  EXPECT_EQ(vit("").stack().block().norm_eps(), 1e-12);
  const auto other = vit(R"("image_size": [32, 32], "patch_size": 8, "num_channels": 1,
      "hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.5, "qkv_bias": false,
      "hidden_act": "gelu_new",)");
  EXPECT_EQ(other.image_size(), 32);
  EXPECT_EQ(other.channels(), 1);
  EXPECT_EQ(other.dropout(), 0.25);
  const auto& block = other.stack().block();
  EXPECT_EQ(block.norm_placement(), NormPlacement::pre);
  EXPECT_EQ(block.dropout(), 0.25);
  EXPECT_EQ(block.attention().dropout(), 0.5);
  EXPECT_FALSE(block.attention().input_bias());
  EXPECT_TRUE(block.attention().output_bias());
  EXPECT_EQ(block.feed_forward().activation(), Activation::gelu_tanh);
  EXPECT_EQ(error("vit", R"("image_size": [32, 16],)"),
            "image_size [32,16] must be those of a square");
}

TEST_F(PretrainedFamily, Dinov2) {
  const auto dinov2 = [&](const std::string& fields, const std::string& type = "dinov2") {
    return std::get<ImageEncoderOptions>(family(type, fields).options);
  };
  const auto plain = dinov2("");
  EXPECT_EQ(plain.patch_size(), 14);
  EXPECT_EQ(plain.stack().block().norm_eps(), 1e-6);
  EXPECT_EQ(plain.stack().block().layer_scale(), 1.0);
  EXPECT_EQ(plain.stack().block().feed_forward().hidden_dim(), 3072);
  EXPECT_EQ(plain.register_num(), 0);
  const auto gated = dinov2(R"("use_swiglu_ffn": true, "hidden_size": 1536,)");
  EXPECT_EQ(gated.stack().block().feed_forward().hidden_dim(), 4096);  // DINOv2 giant
  EXPECT_EQ(gated.stack().block().feed_forward().activation(), Activation::swiglu);
  const auto registers = dinov2("", "dinov2_with_registers");
  EXPECT_EQ(registers.register_num(), 4);
  EXPECT_EQ(registers.patch_size(), 16);
  EXPECT_EQ(error("dinov2", R"("drop_path_rate": 0.1,)"),
            "drop_path_rate 0.1 is not supported (0.0, 0)");
  EXPECT_EQ(error("dinov2", R"("mlp_ratio": 0,)"), "mlp_ratio 0 must make a hidden size from 1");
}

TEST_F(PretrainedFamily, Clip) {
  const auto texts = text_encoder("clip", R"("text_config": {"eos_token_id": 2},)");
  EXPECT_EQ(texts.vocab_size(), 49408);
  EXPECT_EQ(texts.positions()->max_length(), 77);
  EXPECT_EQ(texts.pooling(), TextPooling::largest);
  EXPECT_EQ(texts.projection_dim(), 512);
  EXPECT_FALSE(texts.projection_bias());
  EXPECT_TRUE(texts.stack().block().causal());
  EXPECT_EQ(texts.stack().block().feed_forward().activation(), Activation::gelu_sigmoid);
  EXPECT_EQ(text_encoder("clip", "").end_token(), 49407);
  EXPECT_FALSE(text_encoder("clip_text_model", "").projection_dim());
  family("clip", R"("vision_config": {"image_size": 336, "patch_size": 14}, "projection_dim": 9,)");
  const auto images = std::get<ImageEncoderOptions>(
      detail::read_blueprint(path_, detail::Task::encode_images).options);
  EXPECT_EQ(images.image_size(), 336);
  EXPECT_EQ(images.projection_dim(), 9);
  EXPECT_EQ(images.stack().final_norm(), false);
  EXPECT_TRUE(images.embedding_norm() && images.pooled_norm() && !images.patch_bias());
  EXPECT_EQ(error("clip", R"("text_config": {"model_type": "bert"},)"),
            R"(text_config.model_type "bert" is not supported ("clip_text_model"))");
  EXPECT_EQ(error("clip", R"("text_config": {"eos_token_id": null},)"),
            "text_config.eos_token_id null must be a whole number from 0 to 2147483647");
}

TEST_F(PretrainedFamily, Siglip) {
  const auto texts = text_encoder("siglip", R"("text_config": {"hidden_size": 96},)");
  EXPECT_EQ(texts.vocab_size(), 32000);
  EXPECT_EQ(texts.pooling(), TextPooling::last);
  EXPECT_EQ(texts.projection_dim(), 96);
  EXPECT_TRUE(texts.projection_bias());
  EXPECT_FALSE(texts.stack().block().causal());
  family("siglip", R"("vision_config": {"image_size": 384, "patch_size": 14},)");
  const auto images = std::get<ImageEncoderOptions>(
      detail::read_blueprint(path_, detail::Task::encode_images).options);
  EXPECT_TRUE(images.crop() && !images.class_token());
  ASSERT_TRUE(images.attention_pooling());
  EXPECT_EQ(images.attention_pooling()->attention().head_num(), 12);
  EXPECT_EQ(images.attention_pooling()->norm_eps(), 1e-6);
  EXPECT_EQ(images.attention_pooling()->feed_forward().activation(), Activation::gelu_tanh);
  EXPECT_EQ(error("siglip", R"("text_config_dict": {},)"),
            "text_config_dict {} is not understood; it may change the numbers");
}

}  // namespace
}  // namespace heed::test
