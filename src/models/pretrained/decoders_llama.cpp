#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "models/pretrained/families.h"
#include "models/pretrained/fields.h"
#include "models/pretrained/rope.h"

namespace heed::detail {

namespace {

/// The value of a size that a file leaves out. If there is none, the size follows from others, as
/// it does when it is null.
struct DerivedSize {
  std::optional<int64_t> value;
  bool may_be_null = false;
};

/// A family's values of fields that a file leaves out.
struct LlamaDefaults {
  int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
  DerivedSize num_key_value_heads;  // by default num_attention_heads
  DerivedSize head_dim;             // by default hidden_size / num_attention_heads
  int64_t max_position_embeddings;
  bool tie_word_embeddings;
  double norm_eps;
  const char* norm_eps_name = "rms_norm_eps";
  const char* activation_name = "hidden_act";
  const char* activation = "silu";
};

/// The fields that all decoders with Llama's names share, and the options made of them: blocks
/// with rms_norm, a gated feed-forward layer and no biases.
class LlamaFields {
 public:
  LlamaFields(const Config& config, const LlamaDefaults& defaults);

  void check_heads_divide_width() const;
  void read_attention_bias();
  void read_mlp_bias();
  /// Reads one rotary embedding for all blocks.
  void read_rotary(const RopeFields& fields = {});

  /// For each layer, whether it is local by `is_local` or, if the file has them, by layer_types.
  template <typename IsLocal>
  std::vector<bool> local_layers(const IsLocal& is_local) const;

  EncoderOptions equal_blocks() const { return {block, num_layers}; }
  /// One block for each layer, which change(layer, block) adapts.
  template <typename Change>
  EncoderOptions blocks(const Change& change) const;
  /// Blocks for all layers, with a window for the local ones.
  EncoderOptions blocks_with_windows(const std::vector<bool>& local,
                                     std::optional<int64_t> window) const;

  DecoderOptions decoder(EncoderOptions stack) const;

  const Config& config;
  int64_t vocab_size, width, heads, head_dim, num_layers, max_length;
  bool tied_head;
  TransformerBlockOptions block;

 private:
  TransformerBlockOptions read_block(const LlamaDefaults& defaults) const;
};

bool any_layer(const std::vector<bool>& layers) {
  return std::find(layers.begin(), layers.end(), true) != layers.end();
}

int64_t derived_size(const Config& config, const char* name, const DerivedSize& otherwise,
                     int64_t derived) {
  if (!config.has(name)) return otherwise.value.value_or(derived);
  return otherwise.may_be_null ? config.size_or_null(name).value_or(derived)
                               : config.size(name, derived);
}

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

template <typename IsLocal>
std::vector<bool> LlamaFields::local_layers(const IsLocal& is_local) const {
  std::vector<bool> local(static_cast<size_t>(num_layers));
  for (int64_t layer = 0; layer < num_layers; ++layer) local[layer] = is_local(layer);
  return read_local_layers(config, local);
}

template <typename Change>
EncoderOptions LlamaFields::blocks(const Change& change) const {
  std::vector<TransformerBlockOptions> changed(static_cast<size_t>(num_layers), block);
  for (size_t layer = 0; layer < changed.size(); ++layer) change(layer, changed[layer]);
  return EncoderOptions(std::move(changed));
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

/// Throws if there are local layers but no window.
void check_window(const Config& config, const std::vector<bool>& local,
                  std::optional<int64_t> window) {
  if (!any_layer(local) || window) return;
  config.refuse("sliding_window", "must be given for layers with sliding_attention");
}

/// Throws if there are local layers although use_sliding_window is false.
void check_window_is_used(const Config& config, const std::vector<bool>& local, bool is_used) {
  if (!any_layer(local) || is_used) return;
  config.refuse("use_sliding_window", "must be true for layers with sliding_attention");
}

/// Qwen's blocks: by default, those from max_window_layers on have a window if use_sliding_window
/// is true.
EncoderOptions read_qwen_blocks(const LlamaFields& fields) {
  const auto& config = fields.config;
  const bool is_used = config.boolean("use_sliding_window", false);
  const auto window = config.size_or_null("sliding_window", 4096);
  const auto first = config.whole("max_window_layers", 28, 0, INT32_MAX);
  const auto local =
      fields.local_layers([&](int64_t layer) { return is_used && window && layer >= first; });
  check_window_is_used(config, local, is_used);
  check_window(config, local, window);
  return fields.blocks_with_windows(local, window);
}

/// Whether each layer of SmolLM 3 has a rotary embedding; by default every fourth has none.
std::vector<bool> read_rotated_layers(const Config& config, int64_t num_layers) {
  constexpr auto kLayers = "no_rope_layers";
  const auto interval = config.whole("no_rope_layer_interval", 4, 1, INT32_MAX);
  const auto given = config.sizes_or_null(kLayers);
  if (given && static_cast<int64_t>(given->size()) != num_layers) {
    config.refuse(kLayers, fmt::format("must have {} elements, one for each layer", num_layers));
  }
  std::vector<bool> rotated;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const auto value = given ? (*given)[static_cast<size_t>(layer)]
                             : static_cast<int64_t>((layer + 1) % interval != 0);
    if (value > 1) config.refuse(kLayers, "must hold 0 and 1");
    rotated.push_back(value == 1);
  }
  return rotated;
}

/// The options that all versions of Gemma share.
LlamaFields read_gemma_fields(const Config& config, const LlamaDefaults& defaults) {
  LlamaFields fields(config, defaults);
  fields.read_attention_bias();
  fields.block.norm_unit_offset(true);
  config.expect("use_bidirectional_attention", {"false", "null"});
  return fields;
}

/// Reads what Gemma 2 added: norms on both sides of each layer, and a scale of the scores.
void read_gemma2_attention(LlamaFields& fields) {
  fields.check_heads_divide_width();
  fields.block.norm_placement(NormPlacement::sandwich);
  fields.block.attention().scale(
      1.0 / std::sqrt(static_cast<double>(fields.config.size("query_pre_attn_scalar", 256))));
  fields.config.expect("hidden_act", {R"("gelu_pytorch_tanh")"});  // not read by transformers
}

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

DecoderOptions gemma_decoder(const LlamaFields& fields, EncoderOptions stack) {
  return fields.decoder(std::move(stack))
      .embedding_scale(std::sqrt(static_cast<double>(fields.width)));
}

/// Gemma 3's text model.
DecoderOptions read_gemma3_decoder(const Config& config) {
  auto fields = read_gemma_fields(config, {262208,
                                           2304,
                                           9216,
                                           26,
                                           8,
                                           {4},
                                           {256},
                                           131072,
                                           true,
                                           1e-6,
                                           "rms_norm_eps",
                                           "hidden_activation",
                                           "gelu_pytorch_tanh"});
  read_gemma2_attention(fields);
  fields.block.attention().qk_norm(QkNormOptions().eps(fields.block.norm_eps()).unit_offset(true));
  const auto ropes = read_ropes(config, fields.head_dim, fields.max_length,
                                {"rope_theta", 1e6, "rope_local_base_freq", 1e4, false});
  const auto pattern = config.whole("sliding_window_pattern", 6, 1, INT32_MAX);
  const auto local = fields.local_layers([&](int64_t layer) { return (layer + 1) % pattern != 0; });
  const auto window = config.size_or_null("sliding_window", 4096);
  check_window(config, local, window);
  config.expect("attn_logit_softcapping", {"null"});  // transformers does not apply it
  config.ignore({"_sliding_window_pattern"});
  const auto stack = fields.blocks([&](size_t layer, TransformerBlockOptions& own) {
    own.attention().rotary(local[layer] ? ropes.sliding : ropes.full);
    if (local[layer]) own.attention().window(window);
  });
  return gemma_decoder(fields, stack)
      .softcap(read_softcap(config, "final_logit_softcapping", std::nullopt));
}

/// The options that all versions of OLMo share.
LlamaFields read_olmo_fields(const Config& config) {
  LlamaFields fields(config, {50304, 4096, 11008, 32, 32, {{}, true}, {}, 2048, false, 1e-5});
  fields.read_attention_bias();
  fields.block.norm_placement(NormPlacement::output);
  fields.block.attention().qk_norm(QkNormOptions().eps(fields.block.norm_eps()).across_heads(true));
  return fields;
}

}  // namespace

Blueprint read_llama(const Config& config) {
  LlamaFields fields(config,
                     {32000, 4096, 11008, 32, 32, {{}, true}, {{}, true}, 2048, false, 1e-6});
  fields.check_heads_divide_width();
  fields.read_attention_bias();
  fields.read_mlp_bias();
  fields.read_rotary();
  return {fields.decoder(fields.equal_blocks()), name_maps::llama()};
}

Blueprint read_mistral(const Config& config) {
  LlamaFields fields(config, {32000, 4096, 14336, 32, 32, {8}, {{}, true}, 131072, false, 1e-6});
  fields.read_rotary();
  fields.block.attention().window(config.size_or_null("sliding_window", 4096));
  return {fields.decoder(fields.equal_blocks()), name_maps::llama()};
}

Blueprint read_qwen2(const Config& config) {
  LlamaFields fields(config, {151936, 4096, 22016, 32, 32, {32, true}, {}, 32768, false, 1e-6});
  fields.block.attention().input_bias(true);
  fields.read_rotary();
  config.expect("use_mrope", {"false"});
  return {fields.decoder(read_qwen_blocks(fields)), name_maps::llama()};
}

Blueprint read_qwen3(const Config& config) {
  LlamaFields fields(config, {151936, 4096, 22016, 32, 32, {32, true}, {128}, 32768, false, 1e-6});
  fields.read_attention_bias();
  fields.block.attention().qk_norm(QkNormOptions().eps(fields.block.norm_eps()));
  fields.read_rotary();
  return {fields.decoder(read_qwen_blocks(fields)), name_maps::llama()};
}

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

Blueprint read_phi3(const Config& config) {
  LlamaFields fields(config, {32064, 3072, 8192, 32, 32, {{}, true}, {}, 4096, false, 1e-5});
  RopeFields rope;
  rope.may_be_partial = true;
  rope.original_length = 4096;
  rope.only_longrope = true;
  fields.read_rotary(rope);
  fields.block.attention().window(config.size_or_null("sliding_window"));
  fields.block.dropout(config.probability("resid_pdrop", 0.0));
  for (const auto* name : {"attention_bias", "mlp_bias", "lm_head_bias"}) {
    config.expect(name, {"false"});
  }
  config.expect("full_attn_mod", {"1"});
  config.expect("interpolate_factor", {"1"});
  config.ignore({"embd_pdrop"});  // not used by transformers
  return {fields.decoder(fields.equal_blocks()), name_maps::phi3()};
}

Blueprint read_stablelm(const Config& config) {
  config.expect("head_dim", {"null"});
  LlamaFields fields(
      config, {50304, 2560, 6912, 32, 32, {32}, {{}, true}, 4096, false, 1e-5, "layer_norm_eps"});
  fields.block.norm(NormKind::layer_norm);
  fields.block.attention().input_bias(config.boolean("use_qkv_bias", false));
  RopeFields rope;
  rope.may_be_partial = true;
  rope.partial = 0.25;
  fields.read_rotary(rope);
  const bool parallel = config.boolean("use_parallel_residual", false);
  fields.block.parallel(parallel).shared_norm(parallel);
  fields.block.feed_forward_dropout(config.probability("hidden_dropout", 0.0));
  config.expect("qk_layernorm", {"false"});  // a norm of its own for each head
  return {fields.decoder(fields.equal_blocks()), name_maps::llama()};
}

Blueprint read_gemma(const Config& config) {
  auto fields = read_gemma_fields(config, {256000,
                                           3072,
                                           24576,
                                           28,
                                           16,
                                           {16},
                                           {256},
                                           8192,
                                           true,
                                           1e-6,
                                           "rms_norm_eps",
                                           "hidden_act",
                                           "gelu_pytorch_tanh"});
  if (config.text("hidden_act", "") == "gelu") {  // means the approximation in the first files
    fields.block.feed_forward().activation(Activation::geglu_tanh);
  }
  config.expect("hidden_activation", {"null", R"("gelu_pytorch_tanh")"});  // both mean gelu_tanh
  fields.read_rotary();
  return {gemma_decoder(fields, fields.equal_blocks()), name_maps::llama()};
}

Blueprint read_gemma2(const Config& config) {
  auto fields = read_gemma_fields(config, {256000,
                                           2304,
                                           9216,
                                           26,
                                           8,
                                           {4},
                                           {256},
                                           8192,
                                           true,
                                           1e-6,
                                           "rms_norm_eps",
                                           "hidden_activation",
                                           "gelu_pytorch_tanh"});
  read_gemma2_attention(fields);
  fields.block.attention().softcap(read_softcap(config, "attn_logit_softcapping", 50.0));
  fields.read_rotary();
  config.ignore({"sliding_window_size"});  // sliding_window is read
  const auto local = fields.local_layers([](int64_t layer) { return layer % 2 == 0; });
  const auto window = config.size_or_null("sliding_window", 4096);
  check_window(config, local, window);
  return {gemma_decoder(fields, fields.blocks_with_windows(local, window))
              .softcap(read_softcap(config, "final_logit_softcapping", 30.0)),
          name_maps::gemma2()};
}

Blueprint read_gemma3_text(const Config& config) {
  return {read_gemma3_decoder(config), name_maps::gemma2()};
}

Blueprint read_gemma3(const Config& config) {
  constexpr auto kText = "text_config", kType = "gemma3_text";
  const auto text = config.object(kText);
  text.expect("model_type", {R"("gemma3_text")"});
  text.expect("final_logit_softcapping", {"null"});  // transformers does not apply it here
  auto options = read_gemma3_decoder(text);
  options.tied_head(config.boolean("tie_word_embeddings", true));  // that of the text is not used
  config.ignore({"boi_token_id", "boi_token_index", "eoi_token_id", "eoi_token_index",
                 "image_token_id", "image_token_index", "mm_tokens_per_image",
                 "vision_config"});  // of images, which are left out
  Blueprint blueprint{options, name_maps::gemma3()};
  blueprint.part = ModelPart{kText, kType, options.tied_head(), name_maps::gemma2()};
  return blueprint;
}

Blueprint read_olmo2(const Config& config) {
  auto fields = read_olmo_fields(config);
  fields.read_rotary();
  return {fields.decoder(fields.equal_blocks()), name_maps::olmo2()};
}

Blueprint read_olmo3(const Config& config) {
  const auto fields = read_olmo_fields(config);
  // In files with one base for all layers, transformers 5 takes it for those with full attention
  // alone, and transformers 4 for all.
  config.expect("rope_theta", {"500000", "500000.0"});
  const auto ropes = read_ropes(config, fields.head_dim, fields.max_length,
                                {"rope_theta", 5e5, "rope_theta", 5e5, false});
  const auto local = fields.local_layers([](int64_t layer) { return (layer + 1) % 4 != 0; });
  const auto window = config.size_or_null("sliding_window", 4096);
  check_window(config, local, window);
  const auto stack = fields.blocks([&](size_t layer, TransformerBlockOptions& own) {
    own.attention().rotary(local[layer] ? ropes.sliding : ropes.full);
    if (local[layer]) own.attention().window(window);
  });
  return {fields.decoder(stack), name_maps::olmo2()};
}

Blueprint read_starcoder2(const Config& config) {
  LlamaFields fields(config, {49152,
                              3072,
                              12288,
                              30,
                              24,
                              {2},
                              {{}, true},
                              4096,
                              true,
                              1e-5,
                              "norm_epsilon",
                              "hidden_act",
                              "gelu_pytorch_tanh"});
  const bool bias = config.boolean("use_bias", true);
  fields.read_rotary();
  fields.block.norm(NormKind::layer_norm).dropout(config.probability("residual_dropout", 0.0));
  fields.block.attention().input_bias(bias).output_bias(bias).window(
      config.size_or_null("sliding_window"));
  fields.block.feed_forward()
      .activation(read_activation(config, "hidden_act", "gelu_pytorch_tanh"))
      .bias(bias);
  config.expect("mlp_type", {R"("default")"});  // fields of published files, not read
  config.expect("norm_type", {R"("layer_norm")"});
  return {
      fields.decoder(fields.equal_blocks()).dropout(config.probability("embedding_dropout", 0.0)),
      name_maps::starcoder2()};
}

Blueprint read_cohere2(const Config& config) {
  constexpr auto kSwitch = "layer_switch";
  LlamaFields fields(
      config, {256000, 8192, 22528, 40, 64, {{}, true}, {}, 8192, true, 1e-5, "layer_norm_eps"});
  fields.block.norm(NormKind::layer_norm).norm_bias(false).parallel(true).shared_norm(true);
  fields.read_attention_bias();
  RopeFields rope;
  rope.pairing = RotaryPairing::interleaved;
  fields.read_rotary(rope);
  const auto pattern = config.whole("sliding_window_pattern", 4, 1, INT32_MAX);
  if (config.whole(kSwitch, pattern, 1, INT32_MAX) != pattern) {
    config.refuse(kSwitch, fmt::format("must equal sliding_window_pattern ({})", pattern));
  }
  const auto local = fields.local_layers([&](int64_t layer) { return (layer + 1) % pattern != 0; });
  const auto window = config.size_or_null("sliding_window", 4096);
  check_window(config, local, window);
  // Fields of published files that transformers does not read, with the values that it assumes.
  config.expect("order_of_interleaved_layers", {R"("local_attn_first")"});
  config.expect("position_embedding_type", {R"("rope_gptj")"});
  config.expect("rotary_pct", {"1", "1.0"});
  for (const auto* name : {"use_embedding_sharing", "use_gated_activation", "use_parallel_block"}) {
    config.expect(name, {"true"});
  }
  config.ignore({"_sliding_window_pattern", "use_parallel_embedding"});
  const auto stack = fields.blocks([&](size_t layer, TransformerBlockOptions& own) {
    if (local[layer]) {
      own.attention().window(window);
    } else {
      own.attention().rotary(std::nullopt);
    }
  });
  return {fields.decoder(stack).scores_scale(read_factor(config, "logit_scale", 0.0625)),
          name_maps::llama()};
}

Blueprint read_granite(const Config& config) {
  LlamaFields fields(config, {32000, 4096, 11008, 32, 32, {{}, true}, {}, 2048, false, 1e-6});
  fields.read_attention_bias();
  fields.read_mlp_bias();
  fields.read_rotary();
  fields.block.residual_scale(read_factor(config, "residual_multiplier", 1.0));
  fields.block.attention().scale(read_factor(config, "attention_multiplier", 1.0));
  return {fields.decoder(fields.equal_blocks())
              .embedding_scale(read_factor(config, "embedding_multiplier", 1.0))
              .scores_scale(1.0 / read_factor(config, "logits_scaling", 1.0)),
          name_maps::llama()};
}

Blueprint read_glm4(const Config& config) {
  LlamaFields fields(config,
                     {151552, 4096, 13696, 40, 32, {2}, {128}, 131072, false, 0.00000015625});
  fields.block.norm_placement(NormPlacement::sandwich);
  fields.block.attention().input_bias(config.boolean("attention_bias", true));
  RopeFields rope;
  rope.may_be_partial = true;
  rope.partial = 0.5;
  rope.pairing = RotaryPairing::interleaved;
  fields.read_rotary(rope);
  return {fields.decoder(fields.equal_blocks()), name_maps::glm4()};
}

Blueprint read_smollm3(const Config& config) {
  LlamaFields fields(config, {128256, 2048, 11008, 36, 16, {4, true}, {}, 32768, true, 1e-6});
  fields.read_attention_bias();
  fields.read_mlp_bias();
  RopeFields rope;
  rope.theta = 2e6;
  fields.read_rotary(rope);
  const auto rotated = read_rotated_layers(config, fields.num_layers);
  const bool is_used = config.boolean("use_sliding_window", false);
  const auto window = config.size_or_null("sliding_window");
  const auto local = fields.local_layers(
      [&](int64_t layer) { return is_used && window && !rotated[static_cast<size_t>(layer)]; });
  check_window_is_used(config, local, is_used);
  check_window(config, local, window);
  config.ignore({"max_window_layers"});
  const auto stack = fields.blocks([&](size_t layer, TransformerBlockOptions& own) {
    if (!rotated[layer]) own.attention().rotary(std::nullopt);
    if (local[layer]) own.attention().window(window);
  });
  return {fields.decoder(stack), name_maps::llama()};
}

}  // namespace heed::detail
