// SPDX-License-Identifier: BSD-3-Clause
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "core/error.h"
#include "models/pretrained/families.h"
#include "models/pretrained/llama_fields.h"

// Decoders with Llama's names whose feed-forward layers are mixtures of experts.

namespace heed::detail {

namespace {

/// A family's fields of the experts, and their values where a file leaves them out.
struct ExpertDefaults {
  int64_t count, top_k;
  const char* hidden_name;
  int64_t hidden_size;
};

/// The number of experts, which transformers writes under two names.
int64_t read_expert_num(const Config& config, const ExpertDefaults& defaults) {
  constexpr auto kNew = "num_local_experts", kOld = "num_experts";
  const bool has_both = config.has(kNew) && config.has(kOld);
  const auto count = config.has(kNew) ? config.size(kNew, {}) : config.size(kOld, defaults.count);
  if (has_both && config.size(kOld, {}) != count) {
    config.refuse(kOld, fmt::format("must equal num_local_experts ({})", count));
  }
  return count;
}

/// Experts with the feed-forward layer's activation, whose router normalizes the weights unless
/// norm_topk_prob says otherwise.
MixtureOfExpertsOptions read_experts(const LlamaFields& fields, const ExpertDefaults& defaults) {
  const auto& config = fields.config;
  auto expert = fields.block.feed_forward();
  expert.hidden_dim(config.size(defaults.hidden_name, defaults.hidden_size));
  const auto count = read_expert_num(config, defaults);
  const auto top_k = config.size("num_experts_per_tok", defaults.top_k);
  if (top_k > count) {
    config.refuse("num_experts_per_tok",
                  fmt::format("must be at most the number of experts ({})", count));
  }
  config.ignore({"output_router_logits", "router_aux_loss_coef"});  // of the loss alone
  return {expert, count, top_k};
}

/// Experts with biases whose hidden layer is limited, chosen by a router with a bias.
MixtureOfExpertsOptions read_limited_experts(const LlamaFields& fields) {
  constexpr auto kLimit = "swiglu_limit";
  const auto& config = fields.config;
  const auto limit = config.number(kLimit, 7.0);
  if (limit <= 0.0) config.refuse(kLimit, "must be above 0");
  auto experts = read_experts(fields, {128, 4, "intermediate_size", 2880}).router_bias(true);
  experts.expert().bias(true).swiglu_limit(limit).swiglu_offset(1.0).swiglu_beta(
      config.number("swiglu_alpha", 1.702));
  return experts;
}

/// Throws unless a field of published files, if it is there, repeats the value of another.
void check_repeats(const Config& config, const char* name, const char* other, int64_t value) {
  if (config.size(name, value) == value) return;
  config.refuse(name, fmt::format("must equal {} ({})", other, value));
}

/// Whether each layer of Qwen's mixtures has experts; the others have one feed-forward layer.
std::vector<bool> read_mixed_layers(const LlamaFields& fields) {
  constexpr auto kPlain = "mlp_only_layers";
  const auto& config = fields.config;
  const auto step = config.whole("decoder_sparse_step", 1, 1, INT32_MAX);
  std::vector<bool> mixed(static_cast<size_t>(fields.num_layers));
  for (int64_t layer = 0; layer < fields.num_layers; ++layer) {
    mixed[static_cast<size_t>(layer)] = (layer + 1) % step == 0;
  }
  for (const auto layer : config.sizes_or_null(kPlain).value_or(std::vector<int64_t>())) {
    if (layer >= fields.num_layers) {
      config.refuse(kPlain, fmt::format("must be below num_hidden_layers ({})", fields.num_layers));
    }
    mixed[static_cast<size_t>(layer)] = false;
  }
  return mixed;
}

}  // namespace

Blueprint read_mixtral(const Config& config) {
  LlamaFields fields(config,
                     {32000, 4096, 14336, 32, 32, {8, true}, {{}, true}, 131072, false, 1e-5});
  RopeFields rope;
  rope.theta = 1e6;
  fields.read_rotary(rope);
  fields.block.attention().window(config.size_or_null("sliding_window"));
  fields.block.feed_forward(read_experts(fields, {8, 2, "intermediate_size", 14336}));
  config.expect("router_jitter_noise", {"0.0", "0"});
  return {fields.decoder(fields.equal_blocks()), name_maps::mixtral()};
}

Blueprint read_olmoe(const Config& config) {
  LlamaFields fields(config, {50304, 2048, 2048, 16, 16, {{}, true}, {}, 4096, false, 1e-5});
  fields.read_attention_bias();
  fields.read_rotary();
  fields.block.attention().qk_norm(QkNormOptions().eps(fields.block.norm_eps()).across_heads(true));
  fields.block.feed_forward(read_experts(fields, {64, 8, "intermediate_size", 2048})
                                .normalize(config.boolean("norm_topk_prob", false)));
  config.expect("clip_qkv", {"null"});
  return {fields.decoder(fields.equal_blocks()), name_maps::qwen3_moe()};
}

Blueprint read_qwen2_moe(const Config& config) {
  LlamaFields fields(config, {151936, 2048, 5632, 24, 16, {16}, {}, 32768, false, 1e-6});
  fields.block.attention().input_bias(config.boolean("qkv_bias", true));
  fields.read_rotary();
  auto shared = fields.block.feed_forward();
  shared.hidden_dim(config.size("shared_expert_intermediate_size", 5632));
  const auto experts = read_experts(fields, {60, 4, "moe_intermediate_size", 1408})
                           .normalize(config.boolean("norm_topk_prob", false))
                           .shared(shared)
                           .shared_gate(true);
  const bool is_used = config.boolean("use_sliding_window", false);
  const auto window = is_used ? config.size_or_null("sliding_window", 4096) : std::nullopt;
  config.ignore({"sliding_window"});  // transformers writes 0 where it is not used
  const auto first_whole = config.whole("max_window_layers", 28, 0, INT32_MAX);
  const auto local = fields.local_layers(
      [&](int64_t layer) { return is_used && layer % 2 == 0 && layer < first_whole; });
  check_window_is_used(config, local, is_used);
  check_window(config, local, window);
  const auto mixed = read_mixed_layers(fields);
  const auto stack = fields.blocks([&](size_t layer, TransformerBlockOptions& own) {
    if (mixed[layer]) own.feed_forward(experts);
    if (local[layer]) own.attention().window(window);
  });
  return {fields.decoder(stack), name_maps::qwen3_moe()};
}

Blueprint read_qwen3_moe(const Config& config) {
  LlamaFields fields(config, {151936, 2048, 6144, 24, 32, {4}, {}, 32768, false, 1e-6});
  fields.read_attention_bias();
  fields.block.attention().qk_norm(QkNormOptions().eps(fields.block.norm_eps()));
  fields.read_rotary();
  const auto experts = read_experts(fields, {128, 8, "moe_intermediate_size", 768})
                           .normalize(config.boolean("norm_topk_prob", false));
  const auto window = config.size_or_null("sliding_window", 4096);
  if (config.boolean("use_sliding_window", false)) fields.block.attention().window(window);
  config.ignore({"max_window_layers"});
  const auto mixed = read_mixed_layers(fields);
  const auto stack = fields.blocks([&](size_t layer, TransformerBlockOptions& own) {
    if (mixed[layer]) own.feed_forward(experts);
  });
  return {fields.decoder(stack), name_maps::qwen3_moe()};
}

Blueprint read_gpt_oss(const Config& config) {
  constexpr int64_t kOriginal = 4096;
  config.expect("hidden_act", {R"("silu")"});  // transformers takes it whatever the field says
  LlamaFields fields(config, {201088, 2880, 2880, 36, 64, {8}, {64}, 131072, false, 1e-5});
  const bool bias = config.boolean("attention_bias", true);
  fields.block.attention().input_bias(bias).output_bias(bias).sinks(true);
  RopeFields rope;
  rope.theta = 150000.0;
  rope.scaling = YarnScaling(32.0, kOriginal).truncate(false);
  for (const auto* name : {"rope_parameters", "rope_scaling"}) {
    // Versions of transformers differ in what it means.
    if (config.has(name) && config.object(name).empty()) config.refuse(name, "must have fields");
  }
  fields.read_rotary(rope);
  const auto& rotary = fields.block.attention().rotary();
  const auto scaling = rotary ? rotary->scaling() : std::nullopt;
  const auto* yarn = scaling ? std::get_if<YarnScaling>(&*scaling) : nullptr;
  check_repeats(config, "initial_context_length", "original_max_position_embeddings",
                yarn != nullptr ? yarn->original_length() : kOriginal);
  const auto experts = read_limited_experts(fields);
  check_repeats(config, "experts_per_token", "num_experts_per_tok", experts.top_k());
  fields.block.feed_forward(experts);
  const auto local = fields.local_layers([](int64_t layer) { return layer % 2 == 0; });
  const auto window = config.size_or_null("sliding_window", 128);
  check_window(config, local, window);
  return {fields.decoder(fields.blocks_with_windows(local, window)), name_maps::gpt_oss()};
}

}  // namespace heed::detail
