// SPDX-License-Identifier: BSD-3-Clause
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "models/pretrained/families.h"
#include "models/pretrained/fields.h"
#include "models/pretrained/rope.h"

namespace heed::detail {

namespace {

PositionEmbeddingOptions learned_positions(int64_t width, int64_t count) {
  return PositionEmbeddingOptions(width).kind(PositionKind::learned).max_length(count);
}

/// A family's values of fields that a file leaves out, where they are not BERT's.
struct BertDefaults {
  int64_t vocab_size = 30522, hidden_size = 768, num_attention_heads = 12, intermediate_size = 3072;
  std::optional<int64_t> embedding_size = std::nullopt;  // none: the family has no such field
};

/// The options that families with BERT's names share: post-norm, and a norm after the embeddings.
TextEncoderOptions read_bert_options(const Config& config, const BertDefaults& defaults = {}) {
  const auto width = config.size("hidden_size", defaults.hidden_size);
  const auto embedding_dim =
      defaults.embedding_size ? config.size("embedding_size", defaults.embedding_size) : width;
  const auto heads = config.size("num_attention_heads", defaults.num_attention_heads);
  const auto dropout = config.probability("hidden_dropout_prob", 0.1);
  const auto attention = GroupQueryAttentionOptions(width, heads, heads)
                             .dropout(config.probability("attention_probs_dropout_prob", 0.1));
  TransformerBlockOptions block(attention);
  block.feed_forward()
      .hidden_dim(config.size("intermediate_size", defaults.intermediate_size))
      .activation(read_activation(config, "hidden_act", "gelu"));
  block.norm_placement(NormPlacement::post)
      .norm_eps(read_norm_eps(config, "layer_norm_eps", 1e-12))
      .dropout(dropout);
  const EncoderOptions stack(block, read_num_layers(config, "num_hidden_layers", 12));
  config.expect("is_decoder", {"false"});
  config.expect("add_cross_attention", {"false"});
  config.expect("position_embedding_type", {R"("absolute")"});
  config.ignore({"classifier_dropout", "tie_word_embeddings", "directionality", "pooler_fc_size",
                 "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
                 "pooler_type"});  // fields of heads, which are left out
  TextEncoderOptions options(config.size("vocab_size", defaults.vocab_size), stack);
  if (embedding_dim != width) options.embedding_dim(embedding_dim);
  return options
      .positions(learned_positions(embedding_dim, config.size("max_position_embeddings", 512)))
      .type_vocab_size(config.size("type_vocab_size", 2))
      .embedding_norm(true)
      .dropout(dropout);
}

/// A family with RoBERTa's names, which counts positions from its padding token on.
Blueprint read_roberta_like(const Config& config, const BertDefaults& defaults) {
  return {read_bert_options(config, defaults)
              .padding_token(config.whole("pad_token_id", 1, 0, INT32_MAX)),
          name_maps::roberta()};
}

}  // namespace

Blueprint read_bert(const Config& config) { return {read_bert_options(config), name_maps::bert()}; }

Blueprint read_roberta(const Config& config) { return read_roberta_like(config, {50265}); }

Blueprint read_xlm_roberta(const Config& config) { return read_roberta_like(config, {}); }

Blueprint read_electra(const Config& config) {
  config.ignore({"summary_activation", "summary_first_dropout", "summary_last_dropout",
                 "summary_type", "summary_use_proj"});
  return {read_bert_options(config, {30522, 256, 4, 1024, 128}), name_maps::electra()};
}

Blueprint read_distilbert(const Config& config) {
  constexpr double kNormEps = 1e-12;
  const auto width = config.size("dim", 768), heads = config.size("n_heads", 12);
  const auto dropout = config.probability("dropout", 0.1);
  const auto attention = GroupQueryAttentionOptions(width, heads, heads)
                             .dropout(config.probability("attention_dropout", 0.1));
  TransformerBlockOptions block(attention);
  block.feed_forward()
      .hidden_dim(config.size("hidden_dim", 3072))
      .activation(read_activation(config, "activation", "gelu"));
  block.norm_placement(NormPlacement::post).norm_eps(kNormEps).feed_forward_dropout(dropout);
  const EncoderOptions stack(block, read_num_layers(config, "n_layers", 6));
  // Sinusoidal positions are parameters too, which training may change.
  config.ignore({"sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_word_embeddings",
                 "tie_weights_"});
  return {TextEncoderOptions(config.size("vocab_size", 30522), stack)
              .positions(learned_positions(width, config.size("max_position_embeddings", 512)))
              .embedding_norm(true)
              .dropout(dropout),
          name_maps::distilbert()};
}

Blueprint read_modernbert(const Config& config) {
  const auto width = config.size("hidden_size", 768);
  const auto heads = config.size("num_attention_heads", 12);
  const auto num_layers = read_num_layers(config, "num_hidden_layers", 22);
  const bool bias = config.boolean("attention_bias", false);
  const auto dropout = config.probability("attention_dropout", 0.0);
  TransformerBlockOptions block(GroupQueryAttentionOptions(width, heads, heads)
                                    .input_bias(bias)
                                    .output_bias(bias)
                                    .dropout(dropout));
  block.feed_forward()
      .hidden_dim(config.size("intermediate_size", 1152))
      .activation(read_gated_activation(config, "hidden_activation", "gelu"))
      .bias(config.boolean("mlp_bias", false))
      .dropout(config.probability("mlp_dropout", 0.0));
  block.norm_eps(read_norm_eps(config, "norm_eps", 1e-5))
      .norm_bias(config.boolean("norm_bias", false))
      .dropout(dropout)
      .feed_forward_dropout(0.0);
  const auto ropes = read_ropes(config, width / heads, config.size("max_position_embeddings", 8192),
                                {"global_rope_theta", 160000.0, "local_rope_theta", 10000.0, true});
  const auto every = config.whole("global_attn_every_n_layers", 3, 1, INT32_MAX);
  std::vector<bool> local(static_cast<size_t>(num_layers));
  for (int64_t layer = 0; layer < num_layers; ++layer) local[layer] = layer % every != 0;
  local = read_local_layers(config, local);
  // Half of these keys are before the query and half are behind it.
  const auto window = config.whole("local_attention", 128, 0, INT32_MAX) / 2 + 1;
  std::vector<TransformerBlockOptions> blocks(local.size(), block);
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    auto& attention = blocks[layer].attention();
    attention.rotary(local[layer] ? ropes.sliding : ropes.full);
    if (local[layer]) attention.window(window);
  }
  blocks.front().attention_norm(false);
  config.expect("position_embedding_type", {R"("absolute")"});  // a field of older files
  config.ignore({"classifier_activation", "classifier_bias", "classifier_dropout",
                 "classifier_pooling", "decoder_bias", "tie_word_embeddings",
                 "deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index",
                 "initializer_cutoff_factor", "reference_compile", "repad_logits_with_grad",
                 "layer_norm_eps"});
  return {TextEncoderOptions(config.size("vocab_size", 50368), EncoderOptions(std::move(blocks)))
              .embedding_norm(true)
              .dropout(config.probability("embedding_dropout", 0.0)),
          name_maps::modernbert()};
}

}  // namespace heed::detail
