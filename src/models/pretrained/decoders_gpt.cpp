// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "models/pretrained/families.h"
#include "models/pretrained/fields.h"
#include "models/pretrained/rope.h"

namespace heed::detail {

namespace {

/// Makes the blocks with GPT-2's factors on the scores: one for all layers, which may be divided
/// by the number of each layer.
EncoderOptions read_gpt2_blocks(const Config& config, TransformerBlockOptions block,
                                int64_t num_layers) {
  auto& attention = block.attention();
  const int64_t head_dim = attention.emb_dim() / attention.head_num();
  const bool is_scaled = config.boolean("scale_attn_weights", true);
  const double scale = is_scaled ? 1.0 / std::sqrt(static_cast<double>(head_dim)) : 1.0;
  if (!is_scaled) attention.scale(scale);
  if (!config.boolean("scale_attn_by_inverse_layer_idx", false)) return {block, num_layers};
  std::vector<TransformerBlockOptions> blocks;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    blocks.push_back(block);
    blocks.back().attention().scale(scale / static_cast<double>(layer + 1));
  }
  return EncoderOptions(std::move(blocks));
}

}  // namespace

Blueprint read_gpt2(const Config& config) {
  const auto width = config.size("n_embd", 768), heads = config.size("n_head", 12);
  const auto attention = GroupQueryAttentionOptions(width, heads, heads)
                             .dropout(config.probability("attn_pdrop", 0.1));
  TransformerBlockOptions block(attention);
  block.feed_forward()
      .hidden_dim(config.size_or_null("n_inner"))
      .activation(read_activation(config, "activation_function", "gelu_new"));
  block.norm_eps(read_norm_eps(config, "layer_norm_epsilon", 1e-5))
      .dropout(config.probability("resid_pdrop", 0.1));
  const auto stack = read_gpt2_blocks(config, block, read_num_layers(config, "n_layer", 12));
  config.expect("add_cross_attention", {"false"});
  config.ignore({"n_ctx", "n_special", "predict_special_tokens", "reorder_and_upcast_attn",
                 "summary_activation", "summary_first_dropout", "summary_last_dropout",
                 "summary_proj_to_labels", "summary_type", "summary_use_proj"});
  return {DecoderOptions(config.size("vocab_size", 50257), stack)
              .positions(PositionEmbeddingOptions(width)
                             .kind(PositionKind::learned)
                             .max_length(config.size("n_positions", 1024)))
              .tied_head(config.boolean("tie_word_embeddings", true))
              .dropout(config.probability("embd_pdrop", 0.1)),
          name_maps::gpt2(), /*prefix=*/""};
}

Blueprint read_gpt_neox(const Config& config) {
  const auto width = config.size("hidden_size", 6144);
  const auto heads = config.size("num_attention_heads", 64);
  const bool bias = config.boolean("attention_bias", true);
  const auto dropout = config.probability("hidden_dropout", 0.0);
  RopeFields rope;
  rope.theta_name = "rotary_emb_base";
  rope.partial_name = "rotary_pct";
  rope.partial = 0.25;
  rope.may_be_partial = true;
  const auto attention = GroupQueryAttentionOptions(width, heads, heads)
                             .input_bias(bias)
                             .output_bias(bias)
                             .dropout(config.probability("attention_dropout", 0.0))
                             .rotary(read_rope(config, width / heads,
                                               config.size("max_position_embeddings", 2048), rope));
  TransformerBlockOptions block(attention);
  block.feed_forward()
      .hidden_dim(config.size("intermediate_size", 24576))
      .activation(read_activation(config, "hidden_act", "gelu"));
  block.norm_eps(read_norm_eps(config, "layer_norm_eps", 1e-5))
      .parallel(config.boolean("use_parallel_residual", true))
      .dropout(dropout);
  const EncoderOptions stack(block, read_num_layers(config, "num_hidden_layers", 44));
  for (const auto* name : {"attention_probs_dropout_prob", "hidden_dropout_prob"}) {
    config.expect(name, {"0", "0.0"});
  }
  config.ignore({"classifier_dropout", "is_decoder"});
  return {DecoderOptions(config.size("vocab_size", 50432), stack)
              .tied_head(config.boolean("tie_word_embeddings", false))
              .dropout(dropout),
          name_maps::gpt_neox(heads), "gpt_neox."};
}

}  // namespace heed::detail
