// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "models/pretrained/families.h"
#include "models/pretrained/fields.h"

namespace heed::detail {

namespace {

constexpr auto kPrefix = "model.", kScoreBias = "final_logits_bias";
constexpr auto kEmbedding = "model.shared", kTargets = "model.decoder.embed_tokens";

/// A family's values of fields that a file leaves out.
struct BartDefaults {
  int64_t d_model = 1024, layers = 12, heads = 16, ffn_dim = 4096;
  double dropout = 0.1;
};

/// Adds the names of the blocks of a model with BART's names.
NameMap bart_blocks(NameMap names, const std::string& encoder) {
  for (const auto& [theirs, ours] :
       {std::pair("self_attn", "attention"), std::pair("encoder_attn", "cross_attention")}) {
    const auto attention = theirs + std::string(".");
    names.rename(attention + "q_proj", ours + std::string(".fc_q"))
        .rename(attention + "k_proj", ours + std::string(".fc_k"))
        .rename(attention + "v_proj", ours + std::string(".fc_v"))
        .rename(attention + "out_proj", ours + std::string(".fc_o"))
        .rename(theirs + std::string("_layer_norm"), ours + std::string("_norm"));
  }
  return names.rename("fc1", "feed_forward.fc_in")
      .rename("fc2", "feed_forward.fc_out")
      .rename("final_layer_norm", "feed_forward_norm")
      .inside("model.encoder.layers", encoder + ".stack.blocks")
      .inside("model.decoder.layers", "decoder.stack.blocks");
}

/// Reads the stack of "encoder" or "decoder".
EncoderOptions read_bart_stack(const Config& config, const std::string& part, int64_t width,
                               const BartDefaults& defaults, bool pre_norm, bool key_bias) {
  const auto heads = config.size(part + "_attention_heads", defaults.heads);
  TransformerBlockOptions block(GroupQueryAttentionOptions(width, heads, heads)
                                    .key_bias(key_bias)
                                    .dropout(config.probability("attention_dropout", 0.0)));
  block.feed_forward()
      .hidden_dim(config.size(part + "_ffn_dim", defaults.ffn_dim))
      .activation(read_activation(config, "activation_function", "gelu"))
      .dropout(config.probability("activation_dropout", 0.0));
  block.norm_placement(pre_norm ? NormPlacement::pre : NormPlacement::post)
      .cross_attention(part == "decoder")
      .dropout(config.probability("dropout", defaults.dropout));
  config.expect(part + "_layerdrop", {"0", "0.0"});
  return {block, read_num_layers(config, part + "_layers", defaults.layers)};
}

/// Checks fields that have a second name, which must say what the first says.
void check_second_names(const Config& config, const EncoderOptions& encoder) {
  const auto check = [&](const char* name, const char* first, int64_t value) {
    if (!config.has(name) || config.whole(name, value, INT32_MIN, INT32_MAX) == value) return;
    config.refuse(name, fmt::format("must equal {} ({})", first, value));
  };
  const auto& attention = encoder.block().attention();
  check("num_hidden_layers", "encoder_layers", encoder.num_layers());
  check("num_attention_heads", "encoder_attention_heads", attention.head_num());
  check("hidden_size", "d_model", attention.emb_dim());
}

/// Checks and ignores fields that all families with BART's names have.
void read_bart_frame(const Config& config, const EncoderOptions& encoder) {
  check_second_names(config, encoder);
  config.expect("is_decoder", {"false"});
  config.expect("normalize_before", {"false"});  // fields of older files
  config.expect("add_final_layer_norm", {"false"});
  config.ignore({"classifier_dropout", "classif_dropout", "init_std", "add_bias_logits",
                 "force_bos_token_to_be_generated", "save_step"});
}

double read_embedding_scale(const Config& config, int64_t width) {
  const bool is_scaled = config.boolean("scale_embedding", false);
  return is_scaled ? std::sqrt(static_cast<double>(width)) : 1.0;
}

/// Adds the names of the embeddings of tokens, of which an encoder with none shares the decoder's.
NameMap bart_embeddings(bool shared) {
  NameMap names;
  if (!shared) {
    return names.tied("lm_head", {kTargets})
        .rename("model.encoder.embed_tokens", "encoder.token_embedding")
        .rename(kTargets, "decoder.token_embedding");
  }
  for (const auto* tied : {"lm_head", "model.encoder.embed_tokens", kTargets}) {
    names.tied(tied, {kEmbedding});
  }
  return names.rename(kEmbedding, "decoder.token_embedding");
}

}  // namespace

Blueprint read_bart(const Config& config) {
  constexpr int64_t kOffset = 2;  // of BART's positions in their table
  const BartDefaults defaults;
  const auto width = config.size("d_model", defaults.d_model);
  const auto encoder = read_bart_stack(config, "encoder", width, defaults, false, true);
  const auto decoder = read_bart_stack(config, "decoder", width, defaults, false, true);
  const auto positions = PositionEmbeddingOptions(width)
                             .kind(PositionKind::learned)
                             .max_length(config.size("max_position_embeddings", 1024) + kOffset)
                             .offset(kOffset);
  read_bart_frame(config, encoder);
  config.expect("normalize_embedding", {"true"});
  config.expect("static_position_embeddings", {"false"});
  config.expect("extra_pos_embeddings", {"2"});
  config.expect("tie_word_embeddings", {"true"});
  const auto vocab_size = config.size("vocab_size", 50265);
  const auto scale = read_embedding_scale(config, width);
  const auto dropout = config.probability("dropout", defaults.dropout);
  const auto text = TextEncoderOptions(vocab_size, encoder)
                        .token_embedding(false)
                        .embedding_scale(scale)
                        .positions(positions)
                        .embedding_norm(true)
                        .dropout(dropout);
  const auto own = DecoderOptions(vocab_size, decoder)
                       .score_bias(true)
                       .embedding_scale(scale)
                       .positions(positions)
                       .embedding_norm(true)
                       .dropout(dropout);
  auto names =
      bart_blocks(bart_embeddings(true), "encoder").rename(kScoreBias, "decoder.score_bias");
  for (const std::string part : {"encoder", "decoder"}) {
    names.rename("model." + part + ".embed_positions", part + ".position_embedding")
        .rename("model." + part + ".layernorm_embedding", part + ".embedding_norm")
        .drop("model." + part + ".version");  // of older files
  }
  Blueprint blueprint{EncoderDecoderOptions(text, own), names, kPrefix};
  blueprint.score_bias = kScoreBias;
  return blueprint;
}

Blueprint read_marian(const Config& config) {
  const BartDefaults defaults;
  const auto width = config.size("d_model", defaults.d_model);
  if (width % 2 != 0) config.refuse("d_model", "must be even");
  const auto encoder = read_bart_stack(config, "encoder", width, defaults, false, true);
  const auto decoder = read_bart_stack(config, "decoder", width, defaults, false, true);
  const auto positions = PositionEmbeddingOptions(width).interleaved(false);
  read_bart_frame(config, encoder);
  config.expect("normalize_embedding", {"false"});
  config.expect("static_position_embeddings", {"true"});
  config.expect("tie_word_embeddings", {"true"});
  // Sinusoidal positions go on behind those of the table.
  config.ignore({"max_position_embeddings", "extra_pos_embeddings"});
  const auto sources = config.size("vocab_size", 58101);
  const auto targets = config.size_or_null("decoder_vocab_size").value_or(sources);
  const bool shared = config.boolean("share_encoder_decoder_embeddings", true);
  const auto scale = read_embedding_scale(config, width);
  const auto dropout = config.probability("dropout", defaults.dropout);
  const auto text = TextEncoderOptions(sources, encoder)
                        .token_embedding(!shared)
                        .embedding_scale(scale)
                        .positions(positions)
                        .dropout(dropout);
  const auto own = DecoderOptions(shared ? sources : targets, decoder)
                       .score_bias(true)
                       .embedding_scale(scale)
                       .positions(positions)
                       .dropout(dropout);
  auto names = bart_blocks(bart_embeddings(shared), "encoder")
                   .rename(kScoreBias, "decoder.score_bias")
                   .drop("model.encoder.embed_positions")  // tables of older files
                   .drop("model.decoder.embed_positions");
  Blueprint blueprint{EncoderDecoderOptions(text, own), names, kPrefix};
  blueprint.score_bias = kScoreBias;
  return blueprint;
}

Blueprint read_whisper(const Config& config) {
  const BartDefaults defaults{384, 4, 6, 1536, 0.0};
  const auto width = config.size("d_model", defaults.d_model);
  const auto encoder = read_bart_stack(config, "encoder", width, defaults, true, false);
  const auto decoder = read_bart_stack(config, "decoder", width, defaults, true, false);
  read_bart_frame(config, encoder);
  config.ignore({"apply_spec_augment", "classifier_proj_size", "mask_feature_length",
                 "mask_feature_min_masks", "mask_feature_prob", "mask_time_length",
                 "mask_time_min_masks", "mask_time_prob", "median_filter_width",
                 "num_key_value_heads", "scale_embedding", "use_weighted_layer_sum"});
  const auto dropout = config.probability("dropout", defaults.dropout);
  const auto frames = FrameEncoderOptions(config.size("num_mel_bins", 80),
                                          config.size("max_source_positions", 1500), encoder)
                          .dropout(dropout);
  const auto own = DecoderOptions(config.size("vocab_size", 51865), decoder)
                       .positions(PositionEmbeddingOptions(width)
                                      .kind(PositionKind::learned)
                                      .max_length(config.size("max_target_positions", 448)))
                       .tied_head(config.boolean("tie_word_embeddings", true))
                       .dropout(dropout);
  auto names = bart_blocks(NameMap().tied("proj_out", {kTargets}), "frame_encoder")
                   .inside("proj_out", "decoder.head")
                   .rename(kTargets, "decoder.token_embedding")
                   .rename("model.encoder.conv1", "frame_encoder.first_convolution")
                   .rename("model.encoder.conv2", "frame_encoder.second_convolution")
                   .rename("model.encoder.embed_positions", "frame_encoder.position_embedding")
                   .rename("model.decoder.embed_positions", "decoder.position_embedding")
                   .rename("model.encoder.layer_norm", "frame_encoder.stack.final_norm")
                   .rename("model.decoder.layer_norm", "decoder.stack.final_norm");
  return {EncoderDecoderOptions(frames, own), names, kPrefix};
}

}  // namespace heed::detail
