// SPDX-License-Identifier: BSD-3-Clause
#include <cstdint>

#include "models/pretrained/families.h"
#include "models/pretrained/fields.h"

namespace heed::detail {

namespace {

/// The hidden size F of the feed-forward layers.
int64_t read_dinov2_hidden(const Config& config, int64_t width, bool gated) {
  constexpr auto kRatio = "mlp_ratio";
  constexpr double kMost = 1e6;
  const auto ratio = config.number(kRatio, 4.0);
  const auto hidden = static_cast<double>(width) * ratio;
  if (ratio > kMost || hidden < 1.0) config.refuse(kRatio, "must make a hidden size from 1");
  const auto whole = static_cast<int64_t>(hidden);
  return gated ? (2 * whole / 3 + 7) / 8 * 8 : whole;
}

/// A block of ViT's or DINOv2's attention.
TransformerBlockOptions read_vit_attention(const Config& config) {
  const auto width = config.size("hidden_size", 768);
  const auto heads = config.size("num_attention_heads", 12);
  return GroupQueryAttentionOptions(width, heads, heads)
      .input_bias(config.boolean("qkv_bias", true))
      .dropout(config.probability("attention_probs_dropout_prob", 0.0));
}

TransformerBlockOptions read_dinov2_block(const Config& config, bool gated) {
  auto block = read_vit_attention(config);
  block.feed_forward().hidden_dim(read_dinov2_hidden(config, block.emb_dim(), gated));
  if (gated) {
    config.ignore({"hidden_act"});  // of layers without a gate
    block.feed_forward().activation(Activation::swiglu);
  } else {
    block.feed_forward().activation(read_activation(config, "hidden_act", "gelu"));
  }
  return block.norm_eps(read_norm_eps(config, "layer_norm_eps", 1e-6))
      .layer_scale(config.number("layerscale_value", 1.0));
}

ImageEncoderOptions read_dinov2_options(const Config& config, bool gated, int64_t patch_size) {
  const EncoderOptions stack(read_dinov2_block(config, gated),
                             read_num_layers(config, "num_hidden_layers", 12));
  config.expect("drop_path_rate", {"0.0", "0"});
  config.ignore({"apply_layernorm", "out_features", "out_indices", "reshape_hidden_states",
                 "stage_names", "use_mask_token"});  // fields of backbones and of training
  return ImageEncoderOptions(read_side(config, "image_size", 224),
                             read_side(config, "patch_size", patch_size), stack)
      .channels(config.size("num_channels", 3))
      .crop(true)
      .dropout(config.probability("hidden_dropout_prob", 0.0));
}

bool read_dinov2_gated(const Config& config) { return config.boolean("use_swiglu_ffn", false); }

}  // namespace

Blueprint read_dinov2(const Config& config) {
  const bool gated = read_dinov2_gated(config);
  return {read_dinov2_options(config, gated, 14), name_maps::dinov2(gated)};
}

Blueprint read_dinov2_with_registers(const Config& config) {
  const bool gated = read_dinov2_gated(config);
  return {
      read_dinov2_options(config, gated, 16).register_num(config.size("num_register_tokens", 4)),
      name_maps::dinov2_with_registers(gated)};
}

Blueprint read_vit(const Config& config) {
  const auto dropout = config.probability("hidden_dropout_prob", 0.0);
  auto block = read_vit_attention(config);
  block.feed_forward()
      .hidden_dim(config.size("intermediate_size", 3072))
      .activation(read_activation(config, "hidden_act", "gelu"));
  block.norm_eps(read_norm_eps(config, "layer_norm_eps", 1e-12)).dropout(dropout);
  const EncoderOptions stack(block, read_num_layers(config, "num_hidden_layers", 12));
  config.ignore({"encoder_stride", "pooler_act", "pooler_output_size"});  // fields of heads
  return {ImageEncoderOptions(read_side(config, "image_size", 224),
                              read_side(config, "patch_size", 16), stack)
              .channels(config.size("num_channels", 3))
              .dropout(dropout),
          name_maps::vit()};
}

}  // namespace heed::detail
