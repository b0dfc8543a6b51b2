// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "models/pretrained/families.h"
#include "models/pretrained/fields.h"
#include "modules/layers/activation.h"

namespace heed::detail {

namespace {

/// How families with T5's names differ.
struct T5Like {
  int64_t vocab_size, d_ff, num_layers, num_heads;  // where a file leaves them out
  const char* feed_forward;
  bool may_scale_scores, shared_bias;
};

/// Adds the names of the blocks of a part, "encoder" or "decoder".
void rename_t5_blocks(NameMap& names, const std::string& part, const EncoderOptions& stack) {
  for (int64_t i = 0; i < stack.num_layers(); ++i) {
    const auto theirs = fmt::format("{}.block.{}.layer.", part, i);
    const auto ours = fmt::format("{}.stack.blocks.{}.", part, i);
    int64_t layer = 0;
    const auto attention = [&](const std::string& name, const std::string& own) {
      const auto place = fmt::format("{}{}.", theirs, layer++);
      for (const auto* projection : {"q", "k", "v", "o"}) {
        names.rename(place + name + "." + projection, ours + own + ".fc_" + projection);
      }
      names.rename(place + "layer_norm", ours + own + "_norm");
    };
    const bool has_bias = i == 0 || !stack.shared_relative_bias();
    if (has_bias) {
      names.rename(theirs + "0.SelfAttention.relative_attention_bias",
                   fmt::format("{}.stack.relative_biases.{}", part, i));
    }
    attention("SelfAttention", "attention");
    if (stack.block().cross_attention()) attention("EncDecAttention", "cross_attention");
    const auto place = fmt::format("{}{}.", theirs, layer);
    if (is_gated(stack.block().feed_forward().activation())) {
      names.rename(place + "DenseReluDense.wi_0", ours + "feed_forward.fc_gate")
          .rename(place + "DenseReluDense.wi_1", ours + "feed_forward.fc_in");
    } else {
      names.rename(place + "DenseReluDense.wi", ours + "feed_forward.fc_in");
    }
    names.rename(place + "layer_norm", ours + "feed_forward_norm")
        .rename(place + "DenseReluDense.wo", ours + "feed_forward.fc_out");
  }
  names.rename(part + ".final_layer_norm", part + ".stack.final_norm");
}

NameMap t5_names(const EncoderOptions& encoder, const EncoderOptions& decoder) {
  NameMap names;
  for (const auto* tied : {"lm_head", "encoder.embed_tokens", "decoder.embed_tokens"}) {
    names.tied(tied, {"shared"});
  }
  names.inside("lm_head", "decoder.head")
      .rename("shared", "decoder.token_embedding")
      // Older files have one, which nothing reads: positions of a memory have no distance.
      .drop("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias");
  rename_t5_blocks(names, "encoder", encoder);
  rename_t5_blocks(names, "decoder", decoder);
  return names;
}

/// The activation: that of `feed_forward_proj`, "relu" or "gated-gelu", unless transformers has
/// written its parts, which it prefers.
Activation read_t5_activation(const Config& config, const std::string& otherwise) {
  constexpr auto kProjection = "feed_forward_proj";
  constexpr auto kName = "dense_act_fn";
  const std::string gated = "gated-";
  const auto projection = config.text(kProjection, otherwise);
  const bool begins = projection.rfind(gated, 0) == 0;
  const auto activation = begins ? projection.substr(gated.size()) : projection;
  if (activation.find('-') != std::string::npos) {
    config.refuse(kProjection, "must be an activation, or gated- and an activation");
  }
  const auto name = config.text(kName, projection == "gated-gelu" ? "gelu_new" : activation);
  const auto* field = config.has(kName) ? kName : kProjection;
  return config.boolean("is_gated_act", begins) ? gated_activation_of(config, field, name)
                                                : activation_of(config, field, name);
}

EncoderOptions t5_stack(const TransformerBlockOptions& block, int64_t num_layers, bool shared_bias,
                        const RelativePositionBiasOptions& bias) {
  return EncoderOptions(block, num_layers)
      .relative_bias(bias)
      .shared_relative_bias(shared_bias)
      .final_dropout(block.dropout());
}

RelativePositionBiasOptions read_bias(const Config& config, int64_t heads) {
  constexpr int64_t kMostBuckets = 1 << 16;
  constexpr auto kBuckets = "relative_attention_num_buckets";
  constexpr auto kDistance = "relative_attention_max_distance";
  const auto buckets = config.whole(kBuckets, 32, 4, kMostBuckets);
  if (buckets % 2 != 0) config.refuse(kBuckets, "must be even");
  const auto distance = config.whole(kDistance, 128, 1, INT32_MAX);
  if (distance <= buckets / 2) {
    config.refuse(kDistance, fmt::format("must be above half of {} ({})", kBuckets, buckets));
  }
  return RelativePositionBiasOptions(heads).buckets(buckets).max_distance(distance);
}

/// Whether the scores are divided by sqrt(E): transformers takes this for T5's first version, by
/// a field that says nothing else.
bool are_scores_scaled(const Config& config, const T5Like& family, bool tied) {
  constexpr auto kScaled = "scale_decoder_outputs";
  if (!family.may_scale_scores) {
    config.ignore({kScaled});
    return false;
  }
  return config.boolean(kScaled, tied);
}

Blueprint read_t5_like(const Config& config, const T5Like& family) {
  const auto width = config.size("d_model", 512);
  const auto heads = config.size("num_heads", family.num_heads);
  const auto dropout = config.probability("dropout_rate", 0.1);
  TransformerBlockOptions block(GroupQueryAttentionOptions(width, heads, heads)
                                    .head_dim(config.size("d_kv", 64))
                                    .input_bias(false)
                                    .output_bias(false)
                                    .scale(1.0)
                                    .dropout(dropout));
  block.feed_forward()
      .hidden_dim(config.size("d_ff", family.d_ff))
      .activation(read_t5_activation(config, family.feed_forward))
      .bias(false)
      .dropout(dropout);
  block.norm(NormKind::rms_norm)
      .norm_eps(read_norm_eps(config, "layer_norm_epsilon", 1e-6))
      .dropout(dropout);
  const auto num_layers = read_num_layers(config, "num_layers", family.num_layers);
  const auto layers = config.size_or_null("num_decoder_layers")
                          ? read_num_layers(config, "num_decoder_layers", num_layers)
                          : num_layers;
  auto bias = read_bias(config, heads);
  const auto encoder = t5_stack(block, num_layers, family.shared_bias, bias);
  const auto decoder =
      t5_stack(block.cross_attention(true), layers, family.shared_bias, bias.bidirectional(false));
  const auto vocab_size = config.size("vocab_size", family.vocab_size);
  const bool tied = config.boolean("tie_word_embeddings", true);
  const bool scaled = are_scores_scaled(config, family, tied);
  config.expect("is_decoder", {"false"});
  config.ignore({"classifier_dropout", "initializer_factor", "n_positions"});
  auto own = DecoderOptions(vocab_size, decoder).tied_head(tied).dropout(dropout);
  if (scaled) own.scores_scale(1.0 / std::sqrt(static_cast<double>(width)));
  const EncoderDecoderOptions options(
      TextEncoderOptions(vocab_size, encoder).token_embedding(false).dropout(dropout), own);
  Blueprint blueprint{options, t5_names(encoder, decoder), /*prefix=*/""};
  blueprint.free_head = FreeHead{"lm_head.weight", "shared.weight"};
  return blueprint;
}

}  // namespace

Blueprint read_t5(const Config& config) {
  return read_t5_like(config, {32128, 2048, 6, 8, "relu", true, true});
}

Blueprint read_mt5(const Config& config) {
  return read_t5_like(config, {250112, 1024, 8, 6, "gated-gelu", false, true});
}

Blueprint read_umt5(const Config& config) {
  return read_t5_like(config, {250112, 1024, 8, 6, "gated-gelu", true, false});
}

}  // namespace heed::detail
