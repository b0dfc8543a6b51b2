// SPDX-License-Identifier: BSD-3-Clause
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "models/pretrained/families.h"
#include "models/pretrained/llama_fields.h"

namespace heed::detail {

namespace {

/// Qwen's blocks: by default, those from max_window_layers on have a window if use_sliding_window
/// is true.
EncoderOptions read_qwen_blocks(const LlamaFields& fields) {
  const auto& config = fields.config;
  const bool is_used = config.boolean("use_sliding_window", false);
  const auto window = config.size_or_null("sliding_window", 4096);
  const auto first = config.whole("max_window_layers", 28, 0, INT32_MAX);
  const auto local =
      fields.local_layers([&](int64_t layer) { return is_used && window && layer >= first; });
  check_window_is_used(config, local, is_used);
  check_window(config, local, window);
  return fields.blocks_with_windows(local, window);
}

/// Whether each layer of SmolLM 3 has a rotary embedding; by default every fourth has none.
std::vector<bool> read_rotated_layers(const Config& config, int64_t num_layers) {
  constexpr auto kLayers = "no_rope_layers";
  const auto interval = config.whole("no_rope_layer_interval", 4, 1, INT32_MAX);
  const auto given = config.sizes_or_null(kLayers);
  if (given && static_cast<int64_t>(given->size()) != num_layers) {
    config.refuse(kLayers, fmt::format("must have {} elements, one for each layer", num_layers));
  }
  std::vector<bool> rotated;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const auto value = given ? (*given)[static_cast<size_t>(layer)]
                             : static_cast<int64_t>((layer + 1) % interval != 0);
    if (value > 1) config.refuse(kLayers, "must hold 0 and 1");
    rotated.push_back(value == 1);
  }
  return rotated;
}

/// The options that all versions of OLMo share.
LlamaFields read_olmo_fields(const Config& config) {
  LlamaFields fields(config, {50304, 4096, 11008, 32, 32, {{}, true}, {}, 2048, false, 1e-5});
  fields.read_attention_bias();
  fields.block.norm_placement(NormPlacement::output);
  fields.block.attention().qk_norm(QkNormOptions().eps(fields.block.norm_eps()).across_heads(true));
  return fields;
}

}  // namespace

Blueprint read_llama(const Config& config) {
  LlamaFields fields(config,
                     {32000, 4096, 11008, 32, 32, {{}, true}, {{}, true}, 2048, false, 1e-6});
  fields.check_heads_divide_width();
  fields.read_attention_bias();
  fields.read_mlp_bias();
  fields.read_rotary();
  return {fields.decoder(fields.equal_blocks()), name_maps::llama()};
}

Blueprint read_mistral(const Config& config) {
  LlamaFields fields(config, {32000, 4096, 14336, 32, 32, {8}, {{}, true}, 131072, false, 1e-6});
  fields.read_rotary();
  fields.block.attention().window(config.size_or_null("sliding_window", 4096));
  return {fields.decoder(fields.equal_blocks()), name_maps::llama()};
}

Blueprint read_qwen2(const Config& config) {
  LlamaFields fields(config, {151936, 4096, 22016, 32, 32, {32, true}, {}, 32768, false, 1e-6});
  fields.block.attention().input_bias(true);
  fields.read_rotary();
  config.expect("use_mrope", {"false"});
  return {fields.decoder(read_qwen_blocks(fields)), name_maps::llama()};
}

Blueprint read_qwen3(const Config& config) {
  LlamaFields fields(config, {151936, 4096, 22016, 32, 32, {32, true}, {128}, 32768, false, 1e-6});
  fields.read_attention_bias();
  fields.block.attention().qk_norm(QkNormOptions().eps(fields.block.norm_eps()));
  fields.read_rotary();
  return {fields.decoder(read_qwen_blocks(fields)), name_maps::llama()};
}

Blueprint read_phi3(const Config& config) {
  LlamaFields fields(config, {32064, 3072, 8192, 32, 32, {{}, true}, {}, 4096, false, 1e-5});
  RopeFields rope;
  rope.may_be_partial = true;
  rope.original_length = 4096;
  rope.only_longrope = true;
  fields.read_rotary(rope);
  fields.block.attention().window(config.size_or_null("sliding_window"));
  fields.block.dropout(config.probability("resid_pdrop", 0.0));
  for (const auto* name : {"attention_bias", "mlp_bias", "lm_head_bias"}) {
    config.expect(name, {"false"});
  }
  config.expect("full_attn_mod", {"1"});
  config.expect("interpolate_factor", {"1"});
  config.ignore({"embd_pdrop"});  // not used by transformers
  return {fields.decoder(fields.equal_blocks()), name_maps::phi3()};
}

Blueprint read_stablelm(const Config& config) {
  config.expect("head_dim", {"null"});
  LlamaFields fields(
      config, {50304, 2560, 6912, 32, 32, {32}, {{}, true}, 4096, false, 1e-5, "layer_norm_eps"});
  fields.block.norm(NormKind::layer_norm);
  fields.block.attention().input_bias(config.boolean("use_qkv_bias", false));
  RopeFields rope;
  rope.may_be_partial = true;
  rope.partial = 0.25;
  fields.read_rotary(rope);
  const bool parallel = config.boolean("use_parallel_residual", false);
  fields.block.parallel(parallel).shared_norm(parallel);
  fields.block.feed_forward_dropout(config.probability("hidden_dropout", 0.0));
  config.expect("qk_layernorm", {"false"});  // a norm of its own for each head
  return {fields.decoder(fields.equal_blocks()), name_maps::llama()};
}

Blueprint read_olmo2(const Config& config) {
  auto fields = read_olmo_fields(config);
  fields.read_rotary();
  return {fields.decoder(fields.equal_blocks()), name_maps::olmo2()};
}

Blueprint read_olmo3(const Config& config) {
  const auto fields = read_olmo_fields(config);
  // In files with one base for all layers, transformers 5 takes it for those with full attention
  // alone, and transformers 4 for all.
  config.expect("rope_theta", {"500000", "500000.0"});
  const auto ropes = read_ropes(config, fields.head_dim, fields.max_length,
                                {"rope_theta", 5e5, "rope_theta", 5e5, false});
  const auto local = fields.local_layers([](int64_t layer) { return (layer + 1) % 4 != 0; });
  const auto window = config.size_or_null("sliding_window", 4096);
  check_window(config, local, window);
  const auto stack = fields.blocks([&](size_t layer, TransformerBlockOptions& own) {
    own.attention().rotary(local[layer] ? ropes.sliding : ropes.full);
    if (local[layer]) own.attention().window(window);
  });
  return {fields.decoder(stack), name_maps::olmo2()};
}

Blueprint read_starcoder2(const Config& config) {
  LlamaFields fields(config, {49152,
                              3072,
                              12288,
                              30,
                              24,
                              {2},
                              {{}, true},
                              4096,
                              true,
                              1e-5,
                              "norm_epsilon",
                              "hidden_act",
                              "gelu_pytorch_tanh"});
  const bool bias = config.boolean("use_bias", true);
  fields.read_rotary();
  fields.block.norm(NormKind::layer_norm).dropout(config.probability("residual_dropout", 0.0));
  fields.block.attention().input_bias(bias).output_bias(bias).window(
      config.size_or_null("sliding_window"));
  fields.block.feed_forward()
      .activation(read_activation(config, "hidden_act", "gelu_pytorch_tanh"))
      .bias(bias);
  config.expect("mlp_type", {R"("default")"});  // fields of published files, not read
  config.expect("norm_type", {R"("layer_norm")"});
  return {
      fields.decoder(fields.equal_blocks()).dropout(config.probability("embedding_dropout", 0.0)),
      name_maps::starcoder2()};
}

Blueprint read_cohere2(const Config& config) {
  constexpr auto kSwitch = "layer_switch";
  LlamaFields fields(
      config, {256000, 8192, 22528, 40, 64, {{}, true}, {}, 8192, true, 1e-5, "layer_norm_eps"});
  fields.block.norm(NormKind::layer_norm).norm_bias(false).parallel(true).shared_norm(true);
  fields.read_attention_bias();
  RopeFields rope;
  rope.pairing = RotaryPairing::interleaved;
  fields.read_rotary(rope);
  const auto pattern = config.whole("sliding_window_pattern", 4, 1, INT32_MAX);
  if (config.whole(kSwitch, pattern, 1, INT32_MAX) != pattern) {
    config.refuse(kSwitch, fmt::format("must equal sliding_window_pattern ({})", pattern));
  }
  const auto local = fields.local_layers([&](int64_t layer) { return (layer + 1) % pattern != 0; });
  const auto window = config.size_or_null("sliding_window", 4096);
  check_window(config, local, window);
  // Fields of published files that transformers does not read, with the values that it assumes.
  config.expect("order_of_interleaved_layers", {R"("local_attn_first")"});
  config.expect("position_embedding_type", {R"("rope_gptj")"});
  config.expect("rotary_pct", {"1", "1.0"});
  for (const auto* name : {"use_embedding_sharing", "use_gated_activation", "use_parallel_block"}) {
    config.expect(name, {"true"});
  }
  config.ignore({"_sliding_window_pattern", "use_parallel_embedding"});
  const auto stack = fields.blocks([&](size_t layer, TransformerBlockOptions& own) {
    if (local[layer]) {
      own.attention().window(window);
    } else {
      own.attention().rotary(std::nullopt);
    }
  });
  return {fields.decoder(stack).scores_scale(read_factor(config, "logit_scale", 0.0625)),
          name_maps::llama()};
}

Blueprint read_granite(const Config& config) {
  LlamaFields fields(config, {32000, 4096, 11008, 32, 32, {{}, true}, {}, 2048, false, 1e-6});
  fields.read_attention_bias();
  fields.read_mlp_bias();
  fields.read_rotary();
  fields.block.residual_scale(read_factor(config, "residual_multiplier", 1.0));
  fields.block.attention().scale(read_factor(config, "attention_multiplier", 1.0));
  return {fields.decoder(fields.equal_blocks())
              .embedding_scale(read_factor(config, "embedding_multiplier", 1.0))
              .scores_scale(1.0 / read_factor(config, "logits_scaling", 1.0)),
          name_maps::llama()};
}

Blueprint read_glm4(const Config& config) {
  LlamaFields fields(config,
                     {151552, 4096, 13696, 40, 32, {2}, {128}, 131072, false, 0.00000015625});
  fields.block.norm_placement(NormPlacement::sandwich);
  fields.block.attention().input_bias(config.boolean("attention_bias", true));
  RopeFields rope;
  rope.may_be_partial = true;
  rope.partial = 0.5;
  rope.pairing = RotaryPairing::interleaved;
  fields.read_rotary(rope);
  return {fields.decoder(fields.equal_blocks()), name_maps::glm4()};
}

Blueprint read_smollm3(const Config& config) {
  LlamaFields fields(config, {128256, 2048, 11008, 36, 16, {4, true}, {}, 32768, true, 1e-6});
  fields.read_attention_bias();
  fields.read_mlp_bias();
  RopeFields rope;
  rope.theta = 2e6;
  fields.read_rotary(rope);
  const auto rotated = read_rotated_layers(config, fields.num_layers);
  const bool is_used = config.boolean("use_sliding_window", false);
  const auto window = config.size_or_null("sliding_window");
  const auto local = fields.local_layers(
      [&](int64_t layer) { return is_used && window && !rotated[static_cast<size_t>(layer)]; });
  check_window_is_used(config, local, is_used);
  check_window(config, local, window);
  config.ignore({"max_window_layers"});
  const auto stack = fields.blocks([&](size_t layer, TransformerBlockOptions& own) {
    if (!rotated[layer]) own.attention().rotary(std::nullopt);
    if (local[layer]) own.attention().window(window);
  });
  return {fields.decoder(stack), name_maps::llama()};
}

}  // namespace heed::detail
