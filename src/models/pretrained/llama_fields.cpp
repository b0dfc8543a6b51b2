// SPDX-License-Identifier: BSD-3-Clause
#include "models/pretrained/llama_fields.h"

#include <algorithm>

#include "core/error.h"

namespace heed::detail {

namespace {

bool any_layer(const std::vector<bool>& layers) {
  return std::find(layers.begin(), layers.end(), true) != layers.end();
}

int64_t derived_size(const Config& config, const char* name, const DerivedSize& otherwise,
                     int64_t derived) {
  if (!config.has(name)) return otherwise.value.value_or(derived);
  return otherwise.may_be_null ? config.size_or_null(name).value_or(derived)
                               : config.size(name, derived);
}

}  // namespace

LlamaFields::LlamaFields(const Config& config, const LlamaDefaults& defaults)
    : config(config),
      vocab_size(config.size("vocab_size", defaults.vocab_size)),
      width(config.size("hidden_size", defaults.hidden_size)),
      heads(config.size("num_attention_heads", defaults.num_attention_heads)),
      head_dim(derived_size(config, "head_dim", defaults.head_dim, width / heads)),
      num_layers(read_num_layers(config, "num_hidden_layers", defaults.num_hidden_layers)),
      max_length(config.size("max_position_embeddings", defaults.max_position_embeddings)),
      tied_head(config.boolean("tie_word_embeddings", defaults.tie_word_embeddings)),
      block(read_block(defaults)) {}

TransformerBlockOptions LlamaFields::read_block(const LlamaDefaults& defaults) const {
  const auto groups =
      derived_size(config, "num_key_value_heads", defaults.num_key_value_heads, heads);
  if (heads % groups != 0) {
    config.refuse("num_key_value_heads",
                  fmt::format("must divide num_attention_heads ({})", heads));
  }
  const auto attention = GroupQueryAttentionOptions(width, heads, groups)
                             .head_dim(head_dim)
                             .input_bias(false)
                             .output_bias(false)
                             .dropout(config.probability("attention_dropout", 0.0));
  const auto feed_forward =
      FeedForwardOptions(width)
          .hidden_dim(config.size("intermediate_size", defaults.intermediate_size))
          .activation(read_gated_activation(config, defaults.activation_name, defaults.activation))
          .bias(false);
  return TransformerBlockOptions(attention)
      .feed_forward(feed_forward)
      .norm(NormKind::rms_norm)
      .norm_eps(read_norm_eps(config, defaults.norm_eps_name, defaults.norm_eps));
}

void LlamaFields::check_heads_divide_width() const {
  if (width % heads == 0) return;
  config.refuse("hidden_size",
                fmt::format("must be a multiple of num_attention_heads ({})", heads));
}

void LlamaFields::read_attention_bias() {
  const bool bias = config.boolean("attention_bias", false);
  block.attention().input_bias(bias).output_bias(bias);
}

void LlamaFields::read_mlp_bias() { block.feed_forward().bias(config.boolean("mlp_bias", false)); }

void LlamaFields::read_rotary(const RopeFields& fields) {
  block.attention().rotary(read_rope(config, head_dim, max_length, fields));
}

EncoderOptions LlamaFields::blocks_with_windows(const std::vector<bool>& local,
                                                std::optional<int64_t> window) const {
  if (!any_layer(local)) return equal_blocks();
  return blocks([&](size_t layer, TransformerBlockOptions& own) {
    if (local[layer]) own.attention().window(window);
  });
}

DecoderOptions LlamaFields::decoder(EncoderOptions stack) const {
  return DecoderOptions(vocab_size, stack.final_norm(true)).tied_head(tied_head);
}

void check_window(const Config& config, const std::vector<bool>& local,
                  std::optional<int64_t> window) {
  if (!any_layer(local) || window) return;
  config.refuse("sliding_window", "must be given for layers with sliding_attention");
}

void check_window_is_used(const Config& config, const std::vector<bool>& local, bool is_used) {
  if (!any_layer(local) || is_used) return;
  config.refuse("use_sliding_window", "must be true for layers with sliding_attention");
}

}  // namespace heed::detail
