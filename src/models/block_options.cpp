// SPDX-License-Identifier: BSD-3-Clause
#include "models/block_options.h"

#include <cmath>
#include <iterator>
#include <utility>
#include <variant>

#include "core/checks.h"
#include "models/embedding_scale.h"

namespace heed {

namespace {

using detail::kBlock;

/// The layer of a block's option if it is of this kind; `rule` says so in errors.
template <typename Kind, typename Layer>
const Kind& layer_of_kind(const Layer& layer, const char* option, const char* rule) {
  const auto* const found = std::get_if<Kind>(&layer);
  HEED_CHECK(found != nullptr,
             "TransformerBlockOptions: {} must be {} to be read; {}_layer() returns any kind",
             option, rule, option);
  return *found;
}

/// The options of cross-attention, which sees all of the memory. Its positions are in the memory's
/// embeddings.
GroupQueryAttentionOptions without_positions(GroupQueryAttentionOptions options) {
  return options.causal(false)
      .top_left(false)
      .window(std::nullopt)
      .left_window(std::nullopt)
      .right_window(std::nullopt)
      .rotary(std::nullopt)
      .alibi(false);
}

/// The options of the feed-forward layer that has this emb_dim; null for a layer of the user's.
const int64_t* emb_dim_of(const FeedForwardLayer& layer) {
  if (const auto* plain = std::get_if<FeedForwardOptions>(&layer)) return &plain->emb_dim();
  const auto* mixture = std::get_if<MixtureOfExpertsOptions>(&layer);
  return mixture ? &mixture->expert().emb_dim() : nullptr;
}

/// Throws if cross-attention's own options do not fit the block.
void check_own_cross_attention(const TransformerBlockOptions& options,
                               const GroupQueryAttentionOptions& own) {
  HEED_CHECK(own.emb_dim() == options.emb_dim(),
             "{}: cross_attention emb_dim ({}) must equal attention emb_dim ({})", kBlock,
             own.emb_dim(), options.emb_dim());
  const auto key_width = own.key_emb_dim().value_or(own.emb_dim());
  const auto value_width = own.value_emb_dim().value_or(own.emb_dim());
  HEED_CHECK(key_width == value_width,
             "{}: cross_attention key_emb_dim ({}) must equal value_emb_dim ({}): the memory is "
             "both",
             kBlock, key_width, value_width);
  const auto refuse = [](const char* name, bool is_given) {
    HEED_CHECK(!is_given, "{}: cross_attention {} must not be given: all of the memory is seen",
               kBlock, name);
  };
  refuse("causal", own.causal());
  refuse("top_left", own.top_left());
  refuse("window", own.window().has_value());
  refuse("left_window", own.left_window().has_value());
  refuse("right_window", own.right_window().has_value());
  refuse("rotary", own.rotary().has_value());
  refuse("alibi", own.alibi());
}

void check_block_attentions(const TransformerBlockOptions& options) {
  const bool is_grouped =
      std::holds_alternative<GroupQueryAttentionOptions>(options.attention_layer());
  HEED_CHECK(options.self_attention() || options.cross_attention(),
             "{}: self_attention must be true without cross_attention", kBlock);
  HEED_CHECK(is_grouped || !options.cross_attention() || options.cross_attention_layer(),
             "{}: cross_attention must have options of its own with LatentAttentionOptions",
             kBlock);
  const auto& own = options.cross_attention_layer();
  if (options.cross_attention() && own) check_own_cross_attention(options, *own);
}

void check_block_norms(const TransformerBlockOptions& options) {
  const auto placement = options.norm_placement();
  const bool pre = placement == NormPlacement::pre;
  HEED_CHECK(pre || options.attention_norm(),
             "{}: attention_norm must be true for norm_placement {}", kBlock, to_string(placement));
  HEED_CHECK(pre || !options.parallel(), "{}: parallel must be false for norm_placement {}", kBlock,
             to_string(placement));
  HEED_CHECK(!options.parallel() || !options.cross_attention(),
             "{}: parallel must be false with cross_attention", kBlock);
  HEED_CHECK(!options.shared_norm() || (options.parallel() && options.attention_norm()),
             "{}: shared_norm must be false without parallel or without attention_norm", kBlock);
  const TransformerBlockOptions defaults(GroupQueryAttentionOptions(1, 1, 1));
  HEED_CHECK(!options.has_own_norm() || (options.norm_eps() == defaults.norm_eps() &&
                                         options.norm_bias() && !options.norm_unit_offset()),
             "{}: norm_eps, norm_bias and norm_unit_offset must not be given with a norm of your "
             "own",
             kBlock);
  if (!options.memory_norm()) return;
  HEED_CHECK(options.cross_attention(), "{}: memory_norm must be false without cross_attention",
             kBlock);
  HEED_CHECK(pre || placement == NormPlacement::sandwich,
             "{}: memory_norm must be false for norm_placement {}", kBlock, to_string(placement));
  const auto width = detail::memory_width(options);
  HEED_CHECK(width == options.emb_dim(),
             "{}: memory_norm must be false where cross_attention key_emb_dim ({}) is not emb_dim "
             "({})",
             kBlock, width, options.emb_dim());
}

void check_block_scales(const TransformerBlockOptions& options) {
  detail::check_probability(kBlock, "dropout", options.dropout());
  detail::check_probability(kBlock, "feed_forward_dropout", detail::feed_forward_dropout(options));
  detail::check_factor(kBlock, "residual_scale", options.residual_scale());
  detail::check_factor(kBlock, "skip_scale", options.skip_scale());
  const auto layer_scale = options.layer_scale().value_or(1.0);
  HEED_CHECK(std::isfinite(layer_scale), "{}: layer_scale ({}) must be finite", kBlock,
             layer_scale);
}

}  // namespace

void detail::check_block_options(const TransformerBlockOptions& options) {
  check_block_scales(options);
  const auto width = options.emb_dim();
  const auto* const own_width = emb_dim_of(options.feed_forward_layer());
  HEED_CHECK(own_width == nullptr || *own_width == width,
             "{}: feed_forward emb_dim ({}) must equal attention emb_dim ({})", kBlock, *own_width,
             width);
  check_block_attentions(options);
  check_block_norms(options);
}

GroupQueryAttentionOptions detail::cross_attention_options(const TransformerBlockOptions& options) {
  const auto& own = options.cross_attention_layer();
  return own ? *own : without_positions(options.attention());
}

int64_t detail::memory_width(const TransformerBlockOptions& options) {
  const auto& own = options.cross_attention_layer();
  return own ? own->key_emb_dim().value_or(own->emb_dim()) : options.emb_dim();
}

std::string_view to_string(NormPlacement placement) {
  constexpr std::string_view kNames[] = {"pre", "post", "sandwich", "output"};
  const auto name = static_cast<size_t>(placement);
  TORCH_INTERNAL_ASSERT(name < std::size(kNames), "unknown NormPlacement");
  return kNames[name];
}

const GroupQueryAttentionOptions& TransformerBlockOptions::attention() const {
  return layer_of_kind<GroupQueryAttentionOptions>(attention_layer_, "attention",
                                                   "GroupQueryAttentionOptions");
}

GroupQueryAttentionOptions& TransformerBlockOptions::attention() {
  return const_cast<GroupQueryAttentionOptions&>(std::as_const(*this).attention());
}

int64_t TransformerBlockOptions::emb_dim() const {
  return std::visit([](const auto& attention) { return attention.emb_dim(); }, attention_layer_);
}

bool TransformerBlockOptions::causal() const {
  return std::visit([](const auto& attention) { return attention.causal(); }, attention_layer_);
}

TransformerBlockOptions& TransformerBlockOptions::causal(bool causal) {
  std::visit([&](auto& attention) { attention.causal(causal); }, attention_layer_);
  return *this;
}

const FeedForwardOptions& TransformerBlockOptions::feed_forward() const {
  return layer_of_kind<FeedForwardOptions>(feed_forward_layer_, "feed_forward",
                                           "FeedForwardOptions");
}

FeedForwardOptions& TransformerBlockOptions::feed_forward() {
  return const_cast<FeedForwardOptions&>(std::as_const(*this).feed_forward());
}

const NormKind& TransformerBlockOptions::norm() const {
  return layer_of_kind<NormKind>(norm_layer_, "norm", "a NormKind");
}

NormKind& TransformerBlockOptions::norm() {
  return const_cast<NormKind&>(std::as_const(*this).norm());
}

}  // namespace heed
