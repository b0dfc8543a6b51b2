// SPDX-License-Identifier: BSD-3-Clause
#include <cstdint>
#include <optional>

#include "core/error.h"
#include "models/pretrained/families.h"
#include "models/pretrained/llama_fields.h"

// DeepSeek's decoders: latent attention, and mixtures of experts with experts that are shared.

namespace heed::detail {

namespace {

/// A version's values of the experts' fields that a file leaves out.
struct DeepSeekDefaults {
  int64_t expert_num;
  std::optional<int64_t> top_k;
  int64_t expert_dim, shared_num;
  double scale;
};

constexpr auto kExperts = "n_routed_experts", kTopK = "num_experts_per_tok";

/// Each query head has a key/value head of its own, computed from the latent vector.
void check_key_heads(const LlamaFields& fields) {
  if (fields.block.attention().group_num() == fields.heads) return;
  fields.config.refuse("num_key_value_heads",
                       fmt::format("must equal num_attention_heads ({})", fields.heads));
}

LatentAttentionOptions read_latent_attention(const LlamaFields& fields, RotaryPairing pairing) {
  const auto& config = fields.config;
  const auto rotary_dim = config.size("qk_rope_head_dim", 64);
  RopeFields rope;
  rope.pairing = pairing;
  check_key_heads(fields);
  config.ignore({"qk_head_dim"});  // computed from the sizes of its parts
  return LatentAttentionOptions(fields.width, fields.heads, config.size("kv_lora_rank", 512))
      .query_rank(config.size_or_null("q_lora_rank", 1536))
      .plain_head_dim(config.size("qk_nope_head_dim", 128))
      .rotary_head_dim(rotary_dim)
      .value_head_dim(config.size("v_head_dim", 128))
      .rotary(read_rope(config, rotary_dim, fields.max_length, rope))
      .dropout(fields.block.attention().dropout())
      .bias(config.boolean("attention_bias", false));
}

/// Lets a token's experts be those of its best groups. Without `otherwise`, the fields must be
/// there.
void read_groups(const Config& config, std::optional<int64_t> groups_otherwise,
                 std::optional<int64_t> best_otherwise, MixtureOfExpertsOptions& experts) {
  const auto groups = config.size("n_group", groups_otherwise);
  const auto best = config.size("topk_group", best_otherwise);
  if (experts.expert_num() % groups != 0) {
    config.refuse(kExperts, fmt::format("must be a multiple of n_group ({})", groups));
  }
  if (best > groups)
    config.refuse("topk_group", fmt::format("must be at most n_group ({})", groups));
  const auto candidates = best * (experts.expert_num() / groups);
  if (experts.top_k() > candidates) {
    config.refuse(kTopK,
                  fmt::format("must be at most {}, the experts of topk_group of the n_group groups",
                              candidates));
  }
  experts.group_num(groups).top_groups(best);
}

MixtureOfExpertsOptions read_deepseek_experts(const LlamaFields& fields,
                                              const DeepSeekDefaults& defaults) {
  const auto& config = fields.config;
  const auto hidden = config.size("moe_intermediate_size", defaults.expert_dim);
  auto expert = fields.block.feed_forward(), shared = expert;
  expert.hidden_dim(hidden).bias(false);
  shared.hidden_dim(hidden * config.size("n_shared_experts", defaults.shared_num));
  const auto count = config.size(kExperts, defaults.expert_num);
  const auto top_k = config.size(kTopK, defaults.top_k);
  if (top_k > count) {
    config.refuse(kTopK, fmt::format("must be at most n_routed_experts ({})", count));
  }
  // Fields of the loss, and of how published models were trained.
  config.ignore(
      {"output_router_logits", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "ep_size"});
  config.expect("moe_layer_freq", {"1"});
  return MixtureOfExpertsOptions(expert, count, top_k)
      .shared(shared)
      .scale(read_factor(config, "routed_scaling_factor", defaults.scale));
}

/// A decoder whose layers from first_k_dense_replace on have experts.
Blueprint deepseek(LlamaFields& fields, const LatentAttentionOptions& attention,
                   const MixtureOfExpertsOptions& experts, int64_t first_mixed) {
  const auto first = fields.config.whole("first_k_dense_replace", first_mixed, 0, INT32_MAX);
  fields.block.attention(attention);
  const auto stack = fields.blocks([&](size_t layer, TransformerBlockOptions& own) {
    if (static_cast<int64_t>(layer) >= first) own.feed_forward(experts);
  });
  return {fields.decoder(stack), name_maps::deepseek()};
}

}  // namespace

Blueprint read_deepseek_v2(const Config& config) {
  constexpr auto kMethod = "topk_method";
  LlamaFields fields(config,
                     {102400, 4096, 11008, 32, 32, {{}, true}, {{}, true}, 2048, false, 1e-6});
  fields.read_mlp_bias();
  auto experts = read_deepseek_experts(fields, {64, std::nullopt, 1407, 2, 1.0}).normalize(false);
  const auto method = config.text(kMethod, "greedy");
  if (method == "group_limited_greedy") {
    read_groups(config, std::nullopt, std::nullopt, experts);
  } else if (method != "greedy") {
    config.refuse(kMethod, "is not supported (greedy, group_limited_greedy)");
  }
  config.ignore({"n_group", "topk_group"});
  config.expect("norm_topk_prob", {"false", "null"});  // transformers passes over it
  config.expect("scoring_func", {R"("softmax")"});
  return deepseek(fields, read_latent_attention(fields, RotaryPairing::interleaved), experts,
                  /*first_mixed=*/0);
}

Blueprint read_deepseek_v3(const Config& config) {
  LlamaFields fields(config,
                     {129280, 7168, 18432, 61, 128, {128, true}, {{}, true}, 4096, false, 1e-6});
  auto experts = read_deepseek_experts(fields, {256, 8, 2048, 1, 2.5})
                     .score(ExpertScore::sigmoid)
                     .choice_bias(true)
                     .normalize(config.boolean("norm_topk_prob", true))
                     .group_best(2);
  read_groups(config, 8, 4, experts);
  if (experts.expert_num() / experts.group_num() < 2) {
    config.refuse("n_group", "must leave at least 2 experts for each group");
  }
  config.expect("scoring_func", {R"("sigmoid")"});
  config.expect("topk_method", {R"("noaux_tc")"});
  config.ignore({"num_nextn_predict_layers", "num_mtp_layers"});  // of layers that are left out
  const auto pairing = config.boolean("rope_interleave", true) ? RotaryPairing::interleaved
                                                               : RotaryPairing::half_split;
  const auto attention = read_latent_attention(fields, pairing);
  const auto rotary_dim = attention.rotary_head_dim();
  if (config.size("head_dim", rotary_dim) != rotary_dim) {
    config.refuse("head_dim", fmt::format("must equal qk_rope_head_dim ({})", rotary_dim));
  }
  return deepseek(fields, attention, experts, /*first_mixed=*/3);
}

}  // namespace heed::detail
