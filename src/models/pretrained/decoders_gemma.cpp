// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "models/pretrained/families.h"
#include "models/pretrained/llama_fields.h"

namespace heed::detail {

namespace {

/// The options that all versions of Gemma share.
LlamaFields read_gemma_fields(const Config& config, const LlamaDefaults& defaults) {
  LlamaFields fields(config, defaults);
  fields.read_attention_bias();
  fields.block.norm_unit_offset(true);
  config.expect("use_bidirectional_attention", {"false", "null"});
  return fields;
}

/// Reads what Gemma 2 added: norms on both sides of each layer, and a scale of the scores.
void read_gemma2_attention(LlamaFields& fields) {
  fields.check_heads_divide_width();
  fields.block.norm_placement(NormPlacement::sandwich);
  fields.block.attention().scale(
      1.0 / std::sqrt(static_cast<double>(fields.config.size("query_pre_attn_scalar", 256))));
  fields.config.expect("hidden_act", {R"("gelu_pytorch_tanh")"});  // not read by transformers
}

DecoderOptions gemma_decoder(const LlamaFields& fields, EncoderOptions stack) {
  return fields.decoder(std::move(stack))
      .embedding_scale(std::sqrt(static_cast<double>(fields.width)));
}

/// Gemma 3's text model.
DecoderOptions read_gemma3_decoder(const Config& config) {
  auto fields = read_gemma_fields(config, {262208,
                                           2304,
                                           9216,
                                           26,
                                           8,
                                           {4},
                                           {256},
                                           131072,
                                           true,
                                           1e-6,
                                           "rms_norm_eps",
                                           "hidden_activation",
                                           "gelu_pytorch_tanh"});
  read_gemma2_attention(fields);
  fields.block.attention().qk_norm(QkNormOptions().eps(fields.block.norm_eps()).unit_offset(true));
  const auto ropes = read_ropes(config, fields.head_dim, fields.max_length,
                                {"rope_theta", 1e6, "rope_local_base_freq", 1e4, false});
  const auto pattern = config.whole("sliding_window_pattern", 6, 1, INT32_MAX);
  const auto local = fields.local_layers([&](int64_t layer) { return (layer + 1) % pattern != 0; });
  const auto window = config.size_or_null("sliding_window", 4096);
  check_window(config, local, window);
  config.expect("attn_logit_softcapping", {"null"});  // transformers does not apply it
  config.ignore({"_sliding_window_pattern"});
  const auto stack = fields.blocks([&](size_t layer, TransformerBlockOptions& own) {
    own.attention().rotary(local[layer] ? ropes.sliding : ropes.full);
    if (local[layer]) own.attention().window(window);
  });
  return gemma_decoder(fields, stack)
      .softcap(read_softcap(config, "final_logit_softcapping", std::nullopt));
}

}  // namespace

Blueprint read_gemma(const Config& config) {
  auto fields = read_gemma_fields(config, {256000,
                                           3072,
                                           24576,
                                           28,
                                           16,
                                           {16},
                                           {256},
                                           8192,
                                           true,
                                           1e-6,
                                           "rms_norm_eps",
                                           "hidden_act",
                                           "gelu_pytorch_tanh"});
  if (config.text("hidden_act", "") == "gelu") {  // means the approximation in the first files
    fields.block.feed_forward().activation(Activation::geglu_tanh);
  }
  config.expect("hidden_activation", {"null", R"("gelu_pytorch_tanh")"});  // both mean gelu_tanh
  fields.read_rotary();
  return {gemma_decoder(fields, fields.equal_blocks()), name_maps::llama()};
}

Blueprint read_gemma2(const Config& config) {
  auto fields = read_gemma_fields(config, {256000,
                                           2304,
                                           9216,
                                           26,
                                           8,
                                           {4},
                                           {256},
                                           8192,
                                           true,
                                           1e-6,
                                           "rms_norm_eps",
                                           "hidden_activation",
                                           "gelu_pytorch_tanh"});
  read_gemma2_attention(fields);
  fields.block.attention().softcap(read_softcap(config, "attn_logit_softcapping", 50.0));
  fields.read_rotary();
  config.ignore({"sliding_window_size"});  // sliding_window is read
  const auto local = fields.local_layers([](int64_t layer) { return layer % 2 == 0; });
  const auto window = config.size_or_null("sliding_window", 4096);
  check_window(config, local, window);
  return {gemma_decoder(fields, fields.blocks_with_windows(local, window))
              .softcap(read_softcap(config, "final_logit_softcapping", 30.0)),
          name_maps::gemma2()};
}

Blueprint read_gemma3_text(const Config& config) {
  return {read_gemma3_decoder(config), name_maps::gemma2()};
}

Blueprint read_gemma3(const Config& config) {
  constexpr auto kText = "text_config", kType = "gemma3_text";
  const auto text = config.object(kText);
  text.expect("model_type", {R"("gemma3_text")"});
  text.expect("final_logit_softcapping", {"null"});  // transformers does not apply it here
  auto options = read_gemma3_decoder(text);
  options.tied_head(config.boolean("tie_word_embeddings", true));  // that of the text is not used
  config.ignore({"boi_token_id", "boi_token_index", "eoi_token_id", "eoi_token_index",
                 "image_token_id", "image_token_index", "mm_tokens_per_image",
                 "vision_config"});  // of images, which are left out
  Blueprint blueprint{options, name_maps::gemma3()};
  blueprint.part = ModelPart{kText, kType, options.tied_head(), name_maps::gemma2()};
  return blueprint;
}

}  // namespace heed::detail
