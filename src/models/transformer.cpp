#include <heed/transformer.h>

#include <ATen/TensorOperators.h>
#include <heed/sharded_layers.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/dropout.h>

#include <cmath>
#include <iterator>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "models/block_attention.h"
#include "models/norm_options.h"
#include "modules/attentions/given_inputs.h"
#include "modules/caches/caches.h"
#include "modules/layers/drop_out.h"
#include "modules/layers/linear.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kBlock = "TransformerBlock";

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

/// Normalizes x; returns x itself if the norm is empty.
at::Tensor normalized(const Norm& norm, const at::Tensor& x) {
  return norm ? norm.ptr()->forward(x) : x;
}

/// Checked here so that the error says memory: attention would call it key. Attention itself checks
/// nested tensors.
void check_memory(const at::Tensor& memory, const GroupQueryAttention& attention) {
  if (memory.defined() && memory.is_nested()) return;
  detail::check_input(kBlock, "memory", memory, attention->fc_k->weight);
}

/// `in_step`: x [1, T, E] are the tokens of sequences that each have a row of the memory.
void check_memory(const at::Tensor& x, const TransformerInputs& inputs,
                  const GroupQueryAttention& cross_attention, bool in_step) {
  const bool is_given = inputs.memory() || !inputs.projected_memory().empty();
  HEED_CHECK(
      is_given == !cross_attention.is_empty(), "{}: memory must be {}", kBlock,
      cross_attention ? "given: there is cross-attention" : "absent: there is no cross-attention");
  HEED_CHECK(!inputs.memory() || inputs.projected_memory().empty(),
             "{}: memory must be absent beside projected_memory", kBlock);
  HEED_CHECK(inputs.projected_memory().size() <= 1,
             "{}: projected_memory size ({}) must equal 1, the number of blocks", kBlock,
             inputs.projected_memory().size());
  if (!inputs.memory()) return;
  check_memory(*inputs.memory(), cross_attention);
  if (in_step) return;
  const bool has_batch =
      x.defined() && !x.is_nested() && !inputs.memory()->is_nested() && x.dim() == 3;
  if (has_batch) detail::check_same_dim(kBlock, "memory", *inputs.memory(), "x", x, 0);
}

/// Checked here so that the error says memory_mask: attention would call it mask. Attention itself
/// refuses tensors other than [B, L, E].
void check_memory_mask(const at::Tensor& x, const TransformerInputs& inputs, int64_t heads,
                       int64_t sequence_parts, bool in_step) {
  if (!inputs.memory_mask()) return;
  HEED_CHECK(inputs.memory() || !inputs.projected_memory().empty(),
             "{}: memory_mask must be absent where there is no memory", kBlock);
  const auto has_rank = [](const at::Tensor& tensor, int64_t rank) {
    return tensor.defined() && !tensor.is_nested() && tensor.dim() == rank;
  };
  const bool is_projected = !inputs.memory();
  const auto& memory = is_projected ? inputs.projected_memory()[0].key : *inputs.memory();
  if (!has_rank(x, 3) || !has_rank(memory, is_projected ? 4 : 3)) return;
  const auto batch = in_step ? memory.size(0) : x.size(0);
  const auto length = in_step ? 1 : x.size(1) * sequence_parts;
  detail::check_mask(kBlock, "memory_mask", *inputs.memory_mask(),
                     {x, memory, batch, heads, length, memory.size(is_projected ? 2 : 1)},
                     /*takes_bias=*/false);
}

/// Calls `attend` with the memory as key and value, or with the projected memory.
template <typename Attend>
auto with_memory(const TransformerInputs& inputs, const Attend& attend) {
  const auto& memory = inputs.memory();
  return memory ? attend(*memory, *memory) : attend(inputs.projected_memory()[0]);
}

/// The options of the feed-forward layer that has this emb_dim; null for a layer of the user's.
const int64_t* emb_dim_of(const FeedForwardLayer& layer) {
  if (const auto* plain = std::get_if<FeedForwardOptions>(&layer)) return &plain->emb_dim();
  const auto* mixture = std::get_if<MixtureOfExpertsOptions>(&layer);
  return mixture ? &mixture->expert().emb_dim() : nullptr;
}

/// Throws if a feed-forward layer, or a layer in it, drops elements.
void check_no_dropout_in(const std::shared_ptr<torch::nn::Module>& feed_forward) {
  for (const auto& module : feed_forward->modules()) {
    double dropout = 0.0;
    if (const auto* layer = module->as<FeedForwardImpl>()) dropout = layer->options.dropout();
    if (const auto* layer = module->as<torch::nn::Dropout>()) dropout = layer->options.p();
    detail::check_no_dropout(kBlock, "feed_forward dropout", dropout, module->is_training());
  }
}

/// Throws if a layer of the block drops elements; the attention checks its own dropout.
void check_no_dropout(const TransformerBlockImpl& block) {
  const auto check = [](const char* name, double dropout, const torch::nn::Module& module) {
    detail::check_no_dropout(kBlock, name, dropout, module.is_training());
  };
  const auto dropout = block.options.dropout();
  check("dropout", dropout, block);
  check("feed_forward_dropout", block.options.feed_forward_dropout().value_or(dropout), block);
  check_no_dropout_in(block.feed_forward_module());
  if (const auto& cross = block.cross_attention) {
    check("cross_attention dropout", cross->options.dropout(), *cross);
  }
}

}  // namespace

std::string_view to_string(NormPlacement placement) {
  constexpr std::string_view kNames[] = {"pre", "post", "sandwich", "output"};
  const auto name = static_cast<size_t>(placement);
  TORCH_INTERNAL_ASSERT(name < std::size(kNames), "unknown NormPlacement");
  return kNames[name];
}

const GroupQueryAttentionOptions& TransformerBlockOptions::attention() const {
  const auto* const grouped = std::get_if<GroupQueryAttentionOptions>(&attention_layer_);
  HEED_CHECK(grouped != nullptr,
             "TransformerBlockOptions: attention must be GroupQueryAttentionOptions to be read; "
             "attention_layer() returns any kind");
  return *grouped;
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
  const auto* const plain = std::get_if<FeedForwardOptions>(&feed_forward_layer_);
  HEED_CHECK(plain != nullptr,
             "TransformerBlockOptions: feed_forward must be FeedForwardOptions to be read; "
             "feed_forward_layer() returns any kind");
  return *plain;
}

FeedForwardOptions& TransformerBlockOptions::feed_forward() {
  return const_cast<FeedForwardOptions&>(std::as_const(*this).feed_forward());
}

TransformerBlockImpl::TransformerBlockImpl(const TransformerBlockOptions& options)
    : options(options) {
  reset();
}

void TransformerBlockImpl::check_options() const {
  detail::check_probability(kBlock, "dropout", options.dropout());
  detail::check_probability(kBlock, "feed_forward_dropout", feed_forward_dropout());
  HEED_CHECK(std::isfinite(options.residual_scale()) && options.residual_scale() != 0.0,
             "{}: residual_scale ({}) must be finite and not 0", kBlock, options.residual_scale());
  const auto layer_scale = options.layer_scale().value_or(1.0);
  HEED_CHECK(std::isfinite(layer_scale), "{}: layer_scale ({}) must be finite", kBlock,
             layer_scale);
  const auto width = options.emb_dim();
  const auto* const own_width = emb_dim_of(options.feed_forward_layer());
  HEED_CHECK(own_width == nullptr || *own_width == width,
             "{}: feed_forward emb_dim ({}) must equal attention emb_dim ({})", kBlock, *own_width,
             width);
  const auto placement = options.norm_placement();
  const bool pre = placement == NormPlacement::pre;
  HEED_CHECK(pre || options.attention_norm(),
             "{}: attention_norm must be true for norm_placement {}", kBlock, to_string(placement));
  HEED_CHECK(pre || !options.parallel(), "{}: parallel must be false for norm_placement {}", kBlock,
             to_string(placement));
  const bool is_grouped =
      std::holds_alternative<GroupQueryAttentionOptions>(options.attention_layer());
  HEED_CHECK(is_grouped || !options.cross_attention(),
             "{}: cross_attention must be false with LatentAttentionOptions", kBlock);
  HEED_CHECK(!options.parallel() || !options.cross_attention(),
             "{}: parallel must be false with cross_attention", kBlock);
  HEED_CHECK(!options.shared_norm() || (options.parallel() && options.attention_norm()),
             "{}: shared_norm must be false without parallel or without attention_norm", kBlock);
}

void TransformerBlockImpl::reset() {
  check_options();
  const auto norm = [&](const char* name) {
    return register_module(name, Norm(detail::norm_options(options)));
  };
  const bool sandwich = options.norm_placement() == NormPlacement::sandwich;
  make_attention();
  if (options.attention_norm()) attention_norm = norm("attention_norm");
  if (sandwich) attention_output_norm = norm("attention_output_norm");
  if (options.cross_attention()) {
    cross_attention = register_module("cross_attention",
                                      GroupQueryAttention(without_positions(options.attention())));
    cross_attention_norm = norm("cross_attention_norm");
    if (sandwich) cross_attention_output_norm = norm("cross_attention_output_norm");
  }
  make_feed_forward();
  if (!options.shared_norm()) feed_forward_norm = norm("feed_forward_norm");
  if (sandwich) feed_forward_output_norm = norm("feed_forward_output_norm");
  if (options.layer_scale()) make_layer_scales();
}

void TransformerBlockImpl::make_layer_scales() {
  const auto scale = [&](const char* name) {
    const auto value = detail::empty_parameter({options.emb_dim()});
    if (!detail::UninitializedParameters::are_made()) {
      torch::nn::init::constant_(value, *options.layer_scale());
    }
    return register_parameter(name, value);
  };
  attention_layer_scale = scale("attention_layer_scale");
  if (options.cross_attention()) {
    cross_attention_layer_scale = scale("cross_attention_layer_scale");
  }
  feed_forward_layer_scale = scale("feed_forward_layer_scale");
}

void TransformerBlockImpl::make_attention() {
  constexpr auto kName = "attention";
  const auto& layer = options.attention_layer();
  if (const auto* grouped = std::get_if<GroupQueryAttentionOptions>(&layer)) {
    attention = register_module(kName, GroupQueryAttention(*grouped));
  } else {
    const auto& latent = std::get<LatentAttentionOptions>(layer);
    latent_attention_ = register_module(kName, LatentAttention(latent));
  }
}

void TransformerBlockImpl::make_feed_forward() {
  constexpr auto kName = "feed_forward";
  const auto& layer = options.feed_forward_layer();
  if (const auto* plain = std::get_if<FeedForwardOptions>(&layer)) {
    feed_forward = register_module(kName, FeedForward(*plain));
    return;
  }
  if (const auto* mixture = std::get_if<MixtureOfExpertsOptions>(&layer)) {
    other_feed_forward_ = torch::nn::AnyModule(MixtureOfExperts(*mixture));
  } else {
    const auto& make = std::get<LayerFactory>(layer);
    HEED_CHECK(make, "{}: feed_forward must be a function that makes a layer, not an empty one",
               kBlock);
    other_feed_forward_ = make();
    HEED_CHECK(!other_feed_forward_.is_empty(),
               "{}: feed_forward must return a layer, not an empty AnyModule", kBlock);
  }
  register_module(kName, other_feed_forward_.ptr());
}

std::shared_ptr<torch::nn::Module> TransformerBlockImpl::attention_module() const {
  if (attention) return attention.ptr();
  return latent_attention_.ptr();
}

std::shared_ptr<torch::nn::Module> TransformerBlockImpl::feed_forward_module() const {
  return feed_forward ? feed_forward.ptr() : other_feed_forward_.ptr();
}

std::shared_ptr<torch::nn::Module> TransformerBlockImpl::clone(
    const std::optional<at::Device>& device) const {
  // LibTorch would pass over a layer of the user's that has no `clone`, whose own throws.
  if (options.has_own_feed_forward()) feed_forward_module()->clone(device);
  return Cloneable::clone(device);
}

at::Tensor TransformerBlockImpl::apply_feed_forward(const at::Tensor& x) const {
  if (feed_forward) return feed_forward.ptr()->forward(x);
  auto layer = other_feed_forward_;  // the module itself is shared
  auto output = layer.forward(x);
  HEED_CHECK(output.defined() && output.sizes() == x.sizes(),
             "{}: feed_forward must return the shape of its input {}; it returned {}", kBlock,
             detail::shape(x), detail::shape(output));
  return output;
}

void TransformerBlockImpl::reset_parameters() {
  detail::visit_attention(*this, [](auto& own) { own.reset_parameters(); });
  if (cross_attention) cross_attention->reset_parameters();
  if (feed_forward) feed_forward->reset_parameters();
  if (auto* mixture = feed_forward_module()->as<MixtureOfExperts>()) mixture->reset_parameters();
  for (auto* norm : {&attention_norm, &attention_output_norm, &cross_attention_norm,
                     &cross_attention_output_norm, &feed_forward_norm, &feed_forward_output_norm}) {
    if (*norm) (*norm)->reset_parameters();
  }
  for (const auto& scale :
       {attention_layer_scale, cross_attention_layer_scale, feed_forward_layer_scale}) {
    if (scale.defined()) torch::nn::init::constant_(scale, *options.layer_scale());
  }
}

void TransformerBlockImpl::pretty_print(std::ostream& stream) const {
  const auto defaults = std::visit([](const auto& own) { return TransformerBlockOptions(own); },
                                   options.attention_layer());
  detail::ModulePrinter(stream, kBlock)
      .show("norm", to_string(options.norm()))
      .show("norm_placement", to_string(options.norm_placement()))
      .option("norm_eps", options.norm_eps(), defaults.norm_eps())
      .option("norm_bias", options.norm_bias(), defaults.norm_bias())
      .option("norm_unit_offset", options.norm_unit_offset(), false)
      .option("attention_norm", options.attention_norm(), true)
      .option("parallel", options.parallel(), false)
      .option("shared_norm", options.shared_norm(), false)
      .option("residual_scale", options.residual_scale(), 1.0)
      .option("layer_scale", options.layer_scale())
      .show("dropout", options.dropout())
      .option("feed_forward_dropout", options.feed_forward_dropout())
      .option("cross_attention", options.cross_attention(), false);
}

double TransformerBlockImpl::feed_forward_dropout() const {
  return options.feed_forward_dropout().value_or(options.dropout());
}

/// The norms of a layer, and the way in which its output is added to its input.
struct TransformerBlockImpl::Connection {
  const Norm &norm, &output_norm;
  const at::Tensor& layer_scale;
  double dropout;
};

TransformerBlockImpl::Connection TransformerBlockImpl::attention_connection() const {
  return {attention_norm, attention_output_norm, attention_layer_scale, options.dropout()};
}

TransformerBlockImpl::Connection TransformerBlockImpl::cross_attention_connection() const {
  return {cross_attention_norm, cross_attention_output_norm, cross_attention_layer_scale,
          options.dropout()};
}

TransformerBlockImpl::Connection TransformerBlockImpl::feed_forward_connection() const {
  return {feed_forward_norm, feed_forward_output_norm, feed_forward_layer_scale,
          feed_forward_dropout()};
}

/// The output of a layer as it is added to the layer's input.
at::Tensor TransformerBlockImpl::scaled(const at::Tensor& output,
                                        const Connection& connection) const {
  const auto& first = detail::first_linear(*this);
  const auto& sharing = detail::sharing(*first);
  const bool draws = is_training() && sharing.sequence_parts() > 1;
  const detail::OwnRandomNumbers own(first, output.device(), draws ? connection.dropout : 0.0);
  auto result = detail::drop_out(output, connection.dropout, is_training());
  if (const auto& factors = connection.layer_scale; factors.defined()) {
    result = result * sharing.enter_parameter(factors).to(result.scalar_type());  // autocast's
  }
  const auto scale = options.residual_scale();
  return scale == 1.0 ? result : result * scale;
}

template <typename Layer>
at::Tensor TransformerBlockImpl::residual(const at::Tensor& x, const Connection& connection,
                                          const Layer& layer) const {
  const auto& norm = connection.norm;
  const auto add = [&](const at::Tensor& output) { return x + scaled(output, connection); };
  switch (options.norm_placement()) {
    case NormPlacement::pre:
      return add(layer(normalized(norm, x)));
    case NormPlacement::post:
      return normalized(norm, add(layer(x)));
    case NormPlacement::sandwich:
      return add(normalized(connection.output_norm, layer(normalized(norm, x))));
    case NormPlacement::output:
      return add(normalized(norm, layer(x)));
  }
  TORCH_INTERNAL_ASSERT(false, "unknown NormPlacement");
}

template <typename SelfAttend>
at::Tensor TransformerBlockImpl::run_parallel(const at::Tensor& x,
                                              const SelfAttend& self_attend) const {
  const auto input = normalized(attention_norm, x);
  const auto attended = x + scaled(self_attend(input), attention_connection());
  const auto other = options.shared_norm() ? input : normalized(feed_forward_norm, x);
  return attended + scaled(apply_feed_forward(other), feed_forward_connection());
}

template <typename SelfAttend, typename CrossAttend>
at::Tensor TransformerBlockImpl::run(const at::Tensor& x, const TransformerInputs& inputs,
                                     const SelfAttend& self_attend, const CrossAttend& cross_attend,
                                     bool in_step) const {
  check_memory(x, inputs, cross_attention, in_step);
  const auto heads =
      std::visit([](const auto& own) { return own.head_num(); }, options.attention_layer());
  check_memory_mask(x, inputs, heads,
                    detail::sharing(*detail::first_linear(*this)).sequence_parts(), in_step);
  if (options.parallel()) return run_parallel(x, self_attend);
  auto result = residual(x, attention_connection(), self_attend);
  if (cross_attention) result = residual(result, cross_attention_connection(), cross_attend);
  return residual(result, feed_forward_connection(),
                  [&](const at::Tensor& input) { return apply_feed_forward(input); });
}

at::Tensor TransformerBlockImpl::attend_to_memory(const at::Tensor& x,
                                                  const TransformerInputs& inputs) const {
  return with_memory(inputs, [&](const auto&... memory) {
    return cross_attention.ptr()->forward(x, memory..., inputs.memory_mask());
  });
}

at::Tensor TransformerBlockImpl::forward(const at::Tensor& x, const TransformerInputs& inputs) {
  const AttentionInputs own(inputs);
  return run(
      x, inputs,
      [&](const at::Tensor& input) {
        return detail::visit_attention(*this,
                                       [&](auto& layer) { return layer.forward(input, own); });
      },
      [&](const at::Tensor& input) { return attend_to_memory(input, inputs); });
}

std::tuple<at::Tensor, AttentionWeights> TransformerBlockImpl::forward_with_weights(
    const at::Tensor& x, const TransformerInputs& inputs) const {
  AttentionWeights weights;
  const AttentionInputs own_inputs(inputs);
  auto output = run(
      x, inputs,
      [&](const at::Tensor& input) {
        auto [output, own] = detail::visit_attention(
            *this, [&](auto& layer) { return layer.forward_with_weights(input, own_inputs); });
        weights.self = own;
        return output;
      },
      [&](const at::Tensor& input) {
        auto [output, own] = with_memory(inputs, [&](const auto&... memory) {
          return cross_attention->forward_with_weights(input, memory..., inputs.memory_mask());
        });
        weights.cross = own;
        return output;
      });
  return {std::move(output), std::move(weights)};
}

void TransformerBlockImpl::check_causal() const {
  HEED_CHECK(options.causal(), "{}: attention causal must be true with a cache", kBlock);
}

at::Tensor TransformerBlockImpl::forward_cached(const at::Tensor& x, PagedStep& step, int64_t layer,
                                                const TransformerInputs& inputs) const {
  check_causal();
  check_no_dropout(*this);
  const AttentionInputs own(inputs);
  detail::check_cached_inputs(kBlock, own);
  const WholeSequence whole;
  const auto attend = [&](const at::Tensor& input) {
    return detail::visit_attention(
        *this, [&](auto& own_layer) { return own_layer.forward_cached(input, step, layer, own); });
  };
  const auto attend_to_rows = [&](const at::Tensor& input) {
    const auto& memory = inputs.memory();
    return cross_attention->forward_cached(
        input, step, memory ? project_memory(*memory) : inputs.projected_memory()[0],
        inputs.memory_mask());
  };
  return run(x, inputs, attend, attend_to_rows, /*in_step=*/true);
}

at::Tensor TransformerBlockImpl::forward_cached(const at::Tensor& x, KVCache& cache,
                                                at::IntArrayRef counts,
                                                const TransformerInputs& inputs) const {
  check_causal();
  check_no_dropout(*this);
  const AttentionInputs own(inputs);
  detail::check_cached_inputs(kBlock, own);
  const WholeSequence whole;
  const detail::UndoOnError undo(cache);
  return run(
      x, inputs,
      [&](const at::Tensor& input) {
        return detail::visit_attention(
            *this, [&](auto& layer) { return layer.forward_cached(input, cache, counts, own); });
      },
      [&](const at::Tensor& input) { return attend_to_memory(input, inputs); });
}

KVCache TransformerBlockImpl::make_cache(int64_t batch, int64_t capacity,
                                         const CacheOptions& cache_options) const {
  return detail::visit_attention(
      *this, [&](auto& layer) { return layer.make_cache(batch, capacity, cache_options); });
}

PagedKVCache TransformerBlockImpl::make_paged_cache(int64_t pages,
                                                    const PagedCacheOptions& cache_options) const {
  return detail::visit_attention(
      *this, [&](auto& layer) { return layer.make_paged_cache(pages, cache_options); });
}

ProjectedMemory TransformerBlockImpl::project_memory(const at::Tensor& memory) const {
  HEED_CHECK(options.cross_attention(), "{}: memory must be absent: there is no cross-attention",
             kBlock);
  check_memory(memory, cross_attention);
  return cross_attention->project_memory(memory, memory);
}

}  // namespace heed
