// SPDX-License-Identifier: BSD-3-Clause
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "models/pretrained/families.h"
#include "models/pretrained/fields.h"
#include "models/pretrained/heads.h"
#include "weights/formats/bytes.h"

/// Pairs of an encoder of texts and one of images, whose vectors are comparable.

namespace heed::detail {

namespace {

/// A family's values of fields that a file leaves out.
struct TowerDefaults {
  int64_t width, hidden, heads;
  const char* activation;
  double norm_eps;
};

constexpr TowerDefaults kClipText{512, 2048, 8, "quick_gelu", 1e-5};
constexpr TowerDefaults kClipImage{768, 3072, 12, "quick_gelu", 1e-5};
constexpr TowerDefaults kSiglip{768, 3072, 12, "gelu_pytorch_tanh", 1e-6};

EncoderOptions read_stack(const Config& config, const TowerDefaults& defaults) {
  const auto width = config.size("hidden_size", defaults.width);
  const auto heads = config.size("num_attention_heads", defaults.heads);
  TransformerBlockOptions block(GroupQueryAttentionOptions(width, heads, heads)
                                    .dropout(config.probability("attention_dropout", 0.0)));
  block.feed_forward()
      .hidden_dim(config.size("intermediate_size", defaults.hidden))
      .activation(read_activation(config, "hidden_act", defaults.activation));
  block.norm_eps(read_norm_eps(config, "layer_norm_eps", defaults.norm_eps));
  config.ignore({"initializer_factor", "tie_word_embeddings"});
  return {block, read_num_layers(config, "num_hidden_layers", 12)};
}

TextEncoderOptions read_texts(const Config& config, const EncoderOptions& stack, int64_t vocab_size,
                              int64_t length) {
  const auto width = stack.block().emb_dim();
  config.expect("is_decoder", {"false"});
  config.expect("add_cross_attention", {"false"});
  return TextEncoderOptions(config.size("vocab_size", vocab_size), stack)
      .positions(PositionEmbeddingOptions(width)
                     .kind(PositionKind::learned)
                     .max_length(config.size("max_position_embeddings", length)));
}

ImageEncoderOptions read_images(const Config& config, const EncoderOptions& stack,
                                int64_t patch_size) {
  config.expect("is_decoder", {"false"});
  config.expect("add_cross_attention", {"false"});
  return ImageEncoderOptions(read_side(config, "image_size", 224),
                             read_side(config, "patch_size", patch_size), stack)
      .channels(config.size("num_channels", 3))
      .crop(true);
}

TextEncoderOptions read_clip_texts(const Config& config) {
  // The files of before 2023 have this number of another token: the end is the largest one.
  constexpr int64_t kMistaken = 2;
  auto stack = read_stack(config, kClipText);
  stack.block().attention().causal(true);
  config.ignore({"dropout", "projection_dim"});
  auto options = read_texts(config, stack, 49408, 77);
  const auto end = config.whole("eos_token_id", 49407, 0, INT32_MAX);
  if (end == kMistaken) return options.pooling(TextPooling::largest);
  return options.pooling(TextPooling::end).end_token(end);
}

ImageEncoderOptions read_clip_images(const Config& config) {
  config.ignore({"dropout", "projection_dim"});
  const auto stack = read_stack(config, kClipImage).final_norm(false);
  return read_images(config, stack, 32).patch_bias(false).embedding_norm(true).pooled_norm(true);
}

TextEncoderOptions read_siglip_texts(const Config& config) {
  auto options = read_texts(config, read_stack(config, kSiglip), 32000, 64);
  const auto width = options.stack().block().emb_dim();
  return options.pooling(TextPooling::last)
      .projection_dim(config.size_or_null("projection_size").value_or(width))
      .projection_bias(true);
}

ImageEncoderOptions read_siglip_images(const Config& config) {
  auto options = read_images(config, read_stack(config, kSiglip), 16).class_token(false);
  if (!config.boolean("vision_use_head", true)) return options;
  const auto& block = options.stack().block();
  const auto heads = block.attention().head_num();
  const GroupQueryAttentionOptions attention(block.emb_dim(), heads, heads);
  const auto pooling = AttentionPoolingOptions(attention)
                           .feed_forward(block.feed_forward())
                           .norm_eps(block.norm_eps());
  return options.attention_pooling(pooling);
}

/// The field with a tower's own fields in a pair of CLIP's. An object of older files that repeats
/// some of them replaces all, as in transformers: those that it lacks have the family's values.
std::string field_of_tower(const Config& config, const std::string& name) {
  config.ignore({"text_config_dict", "vision_config_dict"});
  const auto old = name + "_dict";
  const bool is_replaced = config.count_or_null(old).has_value();
  if (is_replaced) config.ignore({name.c_str()});
  return is_replaced ? old : name;
}

/// The projection of a pair of CLIP's, none if there is a classifier of images in its place.
std::optional<int64_t> read_shared_dim(const Config& config) {
  const auto dim = config.size("projection_dim", 512);
  if (ends_with(read_architecture(config), "ForImageClassification")) return std::nullopt;
  return dim;
}

/// The projection of a tower of CLIP's alone.
std::optional<int64_t> read_own_dim(const Config& config) {
  const auto dim = config.size("projection_dim", 512);
  if (!ends_with(read_architecture(config), "WithProjection")) return std::nullopt;
  return dim;
}

/// A tower of a pair, and what its folder of its own has.
struct Tower {
  std::string field;  // of the pair's config.json: the object with the tower's fields
  std::string type, architecture;
  const char* other;  // the field of the other tower
  NameMap names;
};

template <typename Options>
Blueprint tower_of_pair(const Config& config, const Tower& tower,
                        Options (*read)(const Config& config),
                        const std::optional<int64_t>& projection_dim = std::nullopt) {
  const auto fields = config.object(tower.field);
  fields.expect("model_type", {"\"" + tower.type + "\""});
  config.ignore(
      {tower.other, "initializer_factor", "logit_scale_init_value", "tie_word_embeddings"});
  ModelPart part{tower.field, tower.type, std::nullopt, tower.names, tower.architecture};
  auto options = read(fields);
  if (projection_dim) {
    options.projection_dim(projection_dim);
    part.sizes["projection_dim"] = *projection_dim;
  }
  return {options, tower.names, "", "", std::move(part)};
}

/// Describes a tower of CLIP's pairs, which has a class of its own if it has a projection.
template <typename Options>
Blueprint tower_of_clip(const Config& config, Tower tower, Options (*read)(const Config& config)) {
  tower.field = field_of_tower(config, tower.field);
  const auto dim = read_shared_dim(config);
  if (dim) tower.architecture += "WithProjection";
  return tower_of_pair(config, tower, read, dim);
}

}  // namespace

Blueprint read_clip_text(const Config& config) {
  return tower_of_clip(
      config,
      {"text_config", "clip_text_model", "CLIPTextModel", "vision_config", name_maps::clip_text()},
      read_clip_texts);
}

Blueprint read_clip_image(const Config& config) {
  return tower_of_clip(config,
                       {"vision_config", "clip_vision_model", "CLIPVisionModel", "text_config",
                        name_maps::clip_image()},
                       read_clip_images);
}

Blueprint read_clip_text_model(const Config& config) {
  return {read_clip_texts(config).projection_dim(read_own_dim(config)), name_maps::clip_text()};
}

Blueprint read_clip_vision_model(const Config& config) {
  return {read_clip_images(config).projection_dim(read_own_dim(config)), name_maps::clip_image()};
}

Blueprint read_siglip_text(const Config& config) {
  return tower_of_pair(config,
                       {"text_config", "siglip_text_model", "SiglipTextModel", "vision_config",
                        name_maps::siglip_text()},
                       read_siglip_texts);
}

Blueprint read_siglip_image(const Config& config) {
  return tower_of_pair(config,
                       {"vision_config", "siglip_vision_model", "SiglipVisionModel", "text_config",
                        name_maps::siglip_image()},
                       read_siglip_images);
}

Blueprint read_siglip_text_model(const Config& config) {
  return {read_siglip_texts(config), name_maps::siglip_text()};
}

Blueprint read_siglip_vision_model(const Config& config) {
  return {read_siglip_images(config), name_maps::siglip_image()};
}

}  // namespace heed::detail
