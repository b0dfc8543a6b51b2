// SPDX-License-Identifier: BSD-3-Clause
#include <heed/transformer.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/zeros.h>
#include <heed/sharded_layers.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/dropout.h>

#include <string_view>
#include <tuple>
#include <utility>

#include "core/checks.h"
#include "models/block_attention.h"
#include "models/block_memory.h"
#include "models/block_norms.h"
#include "models/block_options.h"
#include "models/own_layer.h"
#include "modules/attentions/given_inputs.h"
#include "modules/caches/caches.h"
#include "modules/layers/drop_out.h"
#include "modules/layers/linear.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

using detail::kBlock;

/// Throws if a layer, or one in it, drops elements. `option` says whose.
void check_no_dropout_in(const std::shared_ptr<torch::nn::Module>& layer, const char* option) {
  for (const auto& module : layer->modules()) {
    double dropout = 0.0;
    if (const auto* plain = module->as<FeedForwardImpl>()) dropout = plain->options.dropout();
    if (const auto* plain = module->as<torch::nn::Dropout>()) dropout = plain->options.p();
    detail::check_no_dropout(kBlock, option, dropout, module->is_training());
  }
}

/// Throws if a layer of the block drops elements; the attention checks its own dropout.
void check_no_dropout(const TransformerBlockImpl& block) {
  const auto check = [](const char* name, double dropout, const torch::nn::Module& module) {
    detail::check_no_dropout(kBlock, name, dropout, module.is_training());
  };
  check("dropout", block.options.dropout(), block);
  check("feed_forward_dropout", detail::feed_forward_dropout(block.options), block);
  check_no_dropout_in(block.feed_forward_module(), "feed_forward dropout");
  for (const auto& place : detail::kNormPlaces) {
    if (!block.options.has_own_norm()) break;
    if (const auto norm = block.norm_module(place.name)) check_no_dropout_in(norm, "norm dropout");
  }
  if (const auto& cross = block.cross_attention) {
    check("cross_attention dropout", cross->options.dropout(), *cross);
  }
}

/// Appends the tokens of x [B, L, E] to the cache of a block without self-attention.
void count_tokens(const at::Tensor& x, KVCache& cache, at::IntArrayRef counts) {
  HEED_CHECK(x.defined() && x.dim() == 3, "{}: x must be [B, L, E]", kBlock);
  const auto dtype = cache.options().dtype();
  const auto none = at::zeros({x.size(0), 1, x.size(1), 1},
                              x.options().dtype(detail::is_quantized(dtype) ? at::kFloat : dtype));
  cache.append(none, none, counts);
}

}  // namespace

TransformerBlockImpl::TransformerBlockImpl(const TransformerBlockOptions& options)
    : options(options) {
  reset();
}

void TransformerBlockImpl::reset() {
  detail::check_block_options(options);
  if (options.self_attention()) {
    make_attention();
    make_norms(detail::kAttentionNorm, options.attention_norm());
  }
  if (options.cross_attention()) {
    cross_attention = register_module(
        "cross_attention", GroupQueryAttention(detail::cross_attention_options(options)));
    make_norms(detail::kCrossAttentionNorm);
  }
  make_feed_forward();
  make_norms(detail::kFeedForwardNorm, !options.shared_norm());
  if (options.layer_scale()) make_layer_scales();
}

/// Makes the norm of a layer, unless it has none, and that of the layer's output.
void TransformerBlockImpl::make_norms(size_t place, bool has_norm) {
  const auto make = [&](size_t at) {
    const auto& [name, member] = detail::kNormPlaces[at];
    detail::make_norm(kBlock, *this, name, options, this->*member, own_norms_[at]);
  };
  if (has_norm) make(place);
  if (options.norm_placement() == NormPlacement::sandwich) make(detail::output_norm(place));
}

void TransformerBlockImpl::make_layer_scales() {
  const auto scale = [&](const char* name) {
    const auto value = detail::empty_parameter({options.emb_dim()});
    if (!detail::UninitializedParameters::are_made()) {
      torch::nn::init::constant_(value, *options.layer_scale());
    }
    return register_parameter(name, value);
  };
  if (options.self_attention()) attention_layer_scale = scale("attention_layer_scale");
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
    other_feed_forward_ = detail::make_own_layer(kBlock, kName, std::get<LayerFactory>(layer));
  }
  register_module(kName, other_feed_forward_.ptr());
}

std::shared_ptr<torch::nn::Module> TransformerBlockImpl::attention_module() const {
  if (attention) return attention.ptr();
  return latent_attention_ ? latent_attention_.ptr() : nullptr;
}

std::shared_ptr<torch::nn::Module> TransformerBlockImpl::feed_forward_module() const {
  return feed_forward ? feed_forward.ptr() : other_feed_forward_.ptr();
}

std::shared_ptr<torch::nn::Module> TransformerBlockImpl::norm_module(std::string_view name) const {
  for (size_t place = 0; place < own_norms_.size(); ++place) {
    if (name != detail::kNormPlaces[place].name) continue;
    if (const auto& norm = this->*detail::kNormPlaces[place].member) return norm.ptr();
    const auto& own = own_norms_[place];
    return own.is_empty() ? nullptr : own.ptr();
  }
  HEED_CHECK(false, "{}: name (\"{}\") must be that of a norm, such as \"attention_norm\"", kBlock,
             name);
}

std::shared_ptr<torch::nn::Module> TransformerBlockImpl::clone(
    const std::optional<at::Device>& device) const {
  // LibTorch would pass over a layer of the user's that has no `clone`, whose own throws.
  if (options.has_own_feed_forward()) feed_forward_module()->clone(device);
  for (const auto& norm : own_norms_) {
    if (!norm.is_empty()) norm.ptr()->clone(device);
  }
  return Cloneable::clone(device);
}

at::Tensor TransformerBlockImpl::apply_feed_forward(const at::Tensor& x) const {
  if (feed_forward) return feed_forward.ptr()->forward(x);
  return detail::apply_own_layer(kBlock, "feed_forward", other_feed_forward_, x);
}

void TransformerBlockImpl::reset_parameters() {
  if (options.self_attention()) {
    detail::visit_attention(*this, [](auto& own) { own.reset_parameters(); });
  }
  if (cross_attention) cross_attention->reset_parameters();
  if (feed_forward) feed_forward->reset_parameters();
  if (auto* mixture = feed_forward_module()->as<MixtureOfExperts>()) mixture->reset_parameters();
  for (const auto& place : detail::kNormPlaces) {
    if (auto& norm = this->*place.member) norm->reset_parameters();
  }
  for (const auto& scale :
       {attention_layer_scale, cross_attention_layer_scale, feed_forward_layer_scale}) {
    if (scale.defined()) torch::nn::init::constant_(scale, options.layer_scale().value_or(1.0));
  }
}

void TransformerBlockImpl::pretty_print(std::ostream& stream) const {
  const auto defaults = std::visit([](const auto& own) { return TransformerBlockOptions(own); },
                                   options.attention_layer());
  detail::ModulePrinter(stream, kBlock)
      .show("norm", options.has_own_norm() ? "own" : to_string(options.norm()))
      .show("norm_placement", to_string(options.norm_placement()))
      .option("norm_eps", options.norm_eps(), defaults.norm_eps())
      .option("norm_bias", options.norm_bias(), defaults.norm_bias())
      .option("norm_unit_offset", options.norm_unit_offset(), false)
      .option("attention_norm", options.attention_norm(), true)
      .option("parallel", options.parallel(), false)
      .option("shared_norm", options.shared_norm(), false)
      .option("memory_norm", options.memory_norm(), false)
      .option("residual_scale", options.residual_scale(), 1.0)
      .option("skip_scale", options.skip_scale(), 1.0)
      .option("layer_scale", options.layer_scale())
      .show("dropout", options.dropout())
      .option("feed_forward_dropout", options.feed_forward_dropout())
      .option("cross_attention", options.cross_attention(), false)
      .option("self_attention", options.self_attention(), true);
}

/// The norms of a layer, and the way in which its output is added to its input.
struct TransformerBlockImpl::Connection {
  size_t norm;  // its place
  const at::Tensor& layer_scale;
  double dropout;
};

TransformerBlockImpl::Connection TransformerBlockImpl::attention_connection() const {
  return {detail::kAttentionNorm, attention_layer_scale, options.dropout()};
}

TransformerBlockImpl::Connection TransformerBlockImpl::cross_attention_connection() const {
  return {detail::kCrossAttentionNorm, cross_attention_layer_scale, options.dropout()};
}

TransformerBlockImpl::Connection TransformerBlockImpl::feed_forward_connection() const {
  return {detail::kFeedForwardNorm, feed_forward_layer_scale,
          detail::feed_forward_dropout(options)};
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

/// The input of a layer and what the layer adds to it.
at::Tensor TransformerBlockImpl::sum(const at::Tensor& x, const at::Tensor& added) const {
  const auto scale = options.skip_scale();
  return scale == 1.0 ? x + added : at::add(added, x, scale);
}

/// Normalizes x; returns x itself if there is no norm.
at::Tensor TransformerBlockImpl::normalized(size_t place, const at::Tensor& x) const {
  return detail::apply_norm(kBlock, this->*detail::kNormPlaces[place].member, own_norms_[place], x);
}

/// The input of a layer, and its norm by that layer if it is computed already.
struct TransformerBlockImpl::Stream {
  at::Tensor x, normalized;
};

/// x + added, and its norm at `place`; only the norm with NormPlacement::post.
TransformerBlockImpl::Stream TransformerBlockImpl::sum_for(size_t place, const at::Tensor& x,
                                                           const at::Tensor& added) const {
  const bool keeps_sum = options.norm_placement() != NormPlacement::post;
  if (options.skip_scale() == 1.0) {
    auto both =
        detail::add_and_apply_norm(this->*detail::kNormPlaces[place].member, x, added, keeps_sum);
    if (both.normalized.defined()) return {std::move(both.sum), std::move(both.normalized)};
  }
  const auto whole = sum(x, added);
  return {whole, normalized(place, whole)};
}

/// The stream behind a layer, for the layer that follows, whose norm is at `next`.
template <typename Layer>
TransformerBlockImpl::Stream TransformerBlockImpl::residual(Stream stream,
                                                            const Connection& connection,
                                                            std::optional<size_t> next,
                                                            const Layer& layer) const {
  const auto norm = connection.norm;
  const auto& x = stream.x;
  // The layer's input is freed before its output is added.
  const auto of_normalized = [&] {
    return layer(stream.normalized.defined() ? std::exchange(stream.normalized, {})
                                             : normalized(norm, x));
  };
  const auto added_to_x = [&](const at::Tensor& output) -> Stream {
    const auto added = scaled(output, connection);
    return next ? sum_for(*next, x, added) : Stream{sum(x, added), {}};
  };
  switch (options.norm_placement()) {
    case NormPlacement::pre:
      return added_to_x(of_normalized());
    case NormPlacement::post:
      return {sum_for(norm, x, scaled(layer(x), connection)).normalized, {}};
    case NormPlacement::sandwich:
      return added_to_x(normalized(detail::output_norm(norm), of_normalized()));
    case NormPlacement::output:
      return {sum(x, scaled(normalized(norm, layer(x)), connection)), {}};
  }
  TORCH_INTERNAL_ASSERT(false, "unknown NormPlacement");
}

template <typename SelfAttend>
at::Tensor TransformerBlockImpl::run_parallel(const at::Tensor& x,
                                              const SelfAttend& self_attend) const {
  const auto input = normalized(detail::kAttentionNorm, x);
  const auto attended = sum(x, scaled(self_attend(input), attention_connection()));
  const auto other = options.shared_norm() ? input : normalized(detail::kFeedForwardNorm, x);
  return attended + scaled(apply_feed_forward(other), feed_forward_connection());
}

template <typename SelfAttend, typename CrossAttend>
at::Tensor TransformerBlockImpl::run(const at::Tensor& x, const TransformerInputs& inputs,
                                     const SelfAttend& self_attend, const CrossAttend& cross_attend,
                                     bool in_step) const {
  detail::check_self_attention_inputs(*this, inputs);
  detail::check_block_memory(*this, x, inputs, in_step);
  if (options.parallel()) return run_parallel(x, self_attend);
  const auto after_attention =
      cross_attention ? detail::kCrossAttentionNorm : detail::kFeedForwardNorm;
  Stream stream{x, {}};
  if (options.self_attention()) {
    stream = residual(std::move(stream), attention_connection(), after_attention, self_attend);
  }
  if (cross_attention) {
    stream = residual(std::move(stream), cross_attention_connection(), detail::kFeedForwardNorm,
                      cross_attend);
  }
  return residual(std::move(stream), feed_forward_connection(), std::nullopt,
                  [&](const at::Tensor& input) { return apply_feed_forward(input); })
      .x;
}

at::Tensor TransformerBlockImpl::normalized_memory(const at::Tensor& memory) const {
  return options.memory_norm() ? normalized(detail::kCrossAttentionNorm, memory) : memory;
}

/// Calls `attend` with the memory as key and value, or with the projected memory.
template <typename Attend>
auto TransformerBlockImpl::with_memory(const TransformerInputs& inputs,
                                       const Attend& attend) const {
  if (!inputs.memory()) return attend(inputs.projected_memory()[0]);
  const auto memory = normalized_memory(*inputs.memory());
  return attend(memory, memory);
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

/// The inputs that self-attention gets in a call with a cache. Checks them.
AttentionInputs TransformerBlockImpl::checked_cached_inputs(const TransformerInputs& inputs) const {
  HEED_CHECK(options.causal(), "{}: attention causal must be true with a cache", kBlock);
  check_no_dropout(*this);
  AttentionInputs own(inputs);
  detail::check_cached_inputs(kBlock, own);
  return own;
}

at::Tensor TransformerBlockImpl::forward_cached(const at::Tensor& x, PagedStep& step, int64_t layer,
                                                const TransformerInputs& inputs) const {
  const auto own = checked_cached_inputs(inputs);
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
  const auto own = checked_cached_inputs(inputs);
  const WholeSequence whole;
  const detail::UndoOnError undo(cache);
  if (!options.self_attention()) count_tokens(x, cache, counts);
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
  if (!options.self_attention()) {
    constexpr HeadSizes kCount{1, 1, 1, 1};
    return detail::make_cache(kCount, std::nullopt, batch, capacity, cache_options,
                              cross_attention->fc_q->weight);
  }
  return detail::visit_attention(
      *this, [&](auto& layer) { return layer.make_cache(batch, capacity, cache_options); });
}

PagedKVCache TransformerBlockImpl::make_paged_cache(int64_t pages,
                                                    const PagedCacheOptions& cache_options) const {
  HEED_CHECK(options.self_attention(), "{}: a PagedKVCache needs self-attention", kBlock);
  return detail::visit_attention(
      *this, [&](auto& layer) { return layer.make_paged_cache(pages, cache_options); });
}

ProjectedMemory TransformerBlockImpl::project_memory(const at::Tensor& memory) const {
  HEED_CHECK(options.cross_attention(), "{}: memory must be absent: there is no cross-attention",
             kBlock);
  detail::check_given_memory(memory, cross_attention);
  const auto own = normalized_memory(memory);
  return cross_attention->project_memory(own, own);
}

}  // namespace heed
