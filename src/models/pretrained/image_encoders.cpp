#include <cstdint>
#include <string>

#include "models/pretrained/families.h"
#include "models/pretrained/fields.h"

namespace heed::detail {

namespace {

/// The side of a square: one number, or its height and its width.
int64_t read_side(const Config& config, const std::string& name, int64_t otherwise) {
  if (!config.is_list(name)) return config.size(name, otherwise);
  const auto sides = config.sizes_or_null(name).value_or(std::vector<int64_t>());
  if (sides.size() != 2 || sides[0] != sides[1]) config.refuse(name, "must be those of a square");
  return sides[0];
}

}  // namespace

Blueprint read_vit(const Config& config) {
  const auto width = config.size("hidden_size", 768);
  const auto heads = config.size("num_attention_heads", 12);
  const auto dropout = config.probability("hidden_dropout_prob", 0.0);
  TransformerBlockOptions block(
      GroupQueryAttentionOptions(width, heads, heads)
          .input_bias(config.boolean("qkv_bias", true))
          .dropout(config.probability("attention_probs_dropout_prob", 0.0)));
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
