// SPDX-License-Identifier: BSD-3-Clause
#include <heed/residual_attention.h>

#include <ATen/TensorOperators.h>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "cpu/layers/layer_norm.h"
#include "modules/attentions/sources.h"
#include "modules/caches/caches.h"
#include "modules/layers/drop_out.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kResidualAttention = "ResidualAttention";

at::Tensor normalize(const torch::nn::LayerNorm& norm, const at::Tensor& input) {
  return detail::layer_norm(input, norm->weight, norm->bias, norm->options.eps());
}

}  // namespace

ResidualAttentionImpl::ResidualAttentionImpl(const ResidualAttentionOptions& options)
    : options(options) {
  reset();
}

void ResidualAttentionImpl::reset() {
  detail::check_probability(kResidualAttention, "dropout", options.dropout());
  attention = register_module("attention", MultiHeadAttention(options.attention()));
  layer_norm = register_module(
      "layer_norm",
      torch::nn::LayerNorm(
          torch::nn::LayerNormOptions({options.attention().emb_dim()}).eps(options.eps())));
}

void ResidualAttentionImpl::reset_parameters() {
  attention->reset_parameters();
  layer_norm->reset_parameters();
}

void ResidualAttentionImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kResidualAttention)
      .show("dropout", options.dropout())
      .show("norm_first", options.norm_first())
      .show("eps", options.eps());
}

/// Checks the inputs, and normalizes the query if norm_first asks for it.
detail::Sources ResidualAttentionImpl::sources(const detail::Sources& inputs,
                                               const std::optional<at::Tensor>& mask) const {
  detail::check_input(kResidualAttention, "query", inputs.query, attention->fc_q->weight);
  if (mask) detail::check_mask_dtype(kResidualAttention, "mask", *mask, /*takes_bias=*/false);
  if (!options.norm_first()) return inputs;
  const auto normed = normalize(layer_norm, inputs.query);
  return inputs.with(normed, inputs.key_is_query ? normed : inputs.key,
                     inputs.value_is_query ? normed : inputs.value);
}

at::Tensor ResidualAttentionImpl::residual(const at::Tensor& query,
                                           const at::Tensor& attended) const {
  const auto dropped = detail::drop_out(attended, options.dropout(), is_training());
  if (options.norm_first()) return query + dropped;
  return normalize(layer_norm, query + dropped);
}

at::Tensor ResidualAttentionImpl::forward(const at::Tensor& x,
                                          const std::optional<at::Tensor>& mask) {
  return forward(x, x, x, mask);
}

at::Tensor ResidualAttentionImpl::forward(const at::Tensor& query, const at::Tensor& key,
                                          const at::Tensor& value,
                                          const std::optional<at::Tensor>& mask) {
  const auto own = sources(detail::Sources::of(query, key, value), mask);
  return residual(query, attention->forward(own.query, own.key, own.value, mask));
}

at::Tensor ResidualAttentionImpl::forward_cached(const at::Tensor& x, KVCache& cache,
                                                 at::IntArrayRef counts) const {
  detail::check_no_dropout(kResidualAttention, "dropout", options.dropout(), is_training());
  const detail::UndoOnError undo(cache);
  const auto input = sources(detail::Sources::self(x)).query;
  return residual(x, attention->forward_cached(input, cache, counts));
}

at::Tensor ResidualAttentionImpl::forward_cached(const at::Tensor& x, PagedStep& step,
                                                 int64_t layer) const {
  detail::check_no_dropout(kResidualAttention, "dropout", options.dropout(), is_training());
  const auto input = sources(detail::Sources::self(x)).query;
  return residual(x, attention->forward_cached(input, step, layer));
}

PagedKVCache ResidualAttentionImpl::make_paged_cache(int64_t pages,
                                                     const PagedCacheOptions& cache_options) const {
  return attention->make_paged_cache(pages, cache_options);
}

KVCache ResidualAttentionImpl::make_cache(int64_t batch, int64_t capacity,
                                          const CacheOptions& cache_options) const {
  return attention->make_cache(batch, capacity, cache_options);
}

std::tuple<at::Tensor, at::Tensor> ResidualAttentionImpl::forward_with_weights(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& mask) const {
  const auto own = sources(detail::Sources::of(query, key, value), mask);
  const auto [attended, weights] =
      attention->forward_with_weights(own.query, own.key, own.value, mask);
  return {residual(query, attended), weights};
}

}  // namespace heed
