// SPDX-License-Identifier: BSD-3-Clause
#include <heed/self_attention.h>

#include <cmath>

#include "core/checks.h"
#include "modules/attentions/calls.h"
#include "modules/caches/caches.h"
#include "modules/heads.h"
#include "modules/layers/linear.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kSelfAttention = "SelfAttention";

double scale(const SelfAttentionOptions& options) {
  return 1.0 / std::sqrt(static_cast<double>(options.embed_size()));
}

/// Projects each head of [B, L, H * D] by the same `linear`: [B, H, L, D].
at::Tensor project_heads(const torch::nn::Linear& linear, const at::Tensor& input,
                         const HeadSizes& sizes) {
  const auto heads = input.unflatten(2, {sizes.heads, sizes.head_dim});
  return detail::project(linear, heads).transpose(1, 2);
}

}  // namespace

SelfAttentionImpl::SelfAttentionImpl(const SelfAttentionOptions& options) : options(options) {
  reset();
}

SelfAttentionImpl::SelfAttentionImpl(int64_t embed_size, int64_t heads)
    : SelfAttentionImpl(SelfAttentionOptions(embed_size, heads)) {}

void SelfAttentionImpl::reset() {
  detail::check_divisible(kSelfAttention, "embed_size", options.embed_size(), "heads",
                          options.heads());
  const auto heads = options.heads(), width = options.embed_size() / heads;
  head_sizes = {heads, heads, width, width};
  const auto linear = [&](const char* name, int64_t size, bool bias) {
    return register_module(name, detail::make_linear(size, size, bias));
  };
  values = linear("values", width, false);
  keys = linear("keys", width, false);
  queries = linear("queries", width, false);
  fc_out = linear("fc_out", options.embed_size(), true);
}

void SelfAttentionImpl::reset_parameters() {
  for (auto* linear : {&values, &keys, &queries, &fc_out}) detail::reset_parameters(*linear);
}

void SelfAttentionImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kSelfAttention)
      .show("embed_size", options.embed_size())
      .show("heads", options.heads());
}

std::tuple<at::Tensor, at::Tensor> SelfAttentionImpl::forward(
    const at::Tensor& value, const at::Tensor& key, const at::Tensor& query,
    const std::optional<at::Tensor>& mask) {
  detail::check_input(kSelfAttention, "value", value, fc_out->weight, "embed_size");
  detail::check_input(kSelfAttention, "key", key, fc_out->weight, "embed_size");
  detail::check_input(kSelfAttention, "query", query, fc_out->weight, "embed_size");
  detail::check_sources(kSelfAttention, query, key, value);
  const auto [attended, weights] = attend_with_weights(
      project_heads(queries, query, head_sizes), project_heads(keys, key, head_sizes),
      project_heads(values, value, head_sizes),
      detail::call_options(kSelfAttention, mask, /*dropout=*/0.0, is_training())
          .scale(scale(options)));
  return {detail::project(fc_out, detail::merge_heads(attended)), weights};
}

at::Tensor SelfAttentionImpl::forward_appended(const at::Tensor& x,
                                               detail::AppendedTokens& tokens) const {
  const auto call = AttendOptions().scale(scale(options));
  tokens.check(call);
  detail::check_input(kSelfAttention, "x", x, fc_out->weight, "embed_size");
  const detail::Heads heads = {project_heads(queries, x, head_sizes),
                               project_heads(keys, x, head_sizes),
                               project_heads(values, x, head_sizes)};
  return detail::project(fc_out, detail::merge_heads(tokens.append_and_attend(heads, call)));
}

at::Tensor SelfAttentionImpl::forward_cached(const at::Tensor& x, KVCache& cache,
                                             at::IntArrayRef counts) const {
  detail::TokensOfBatch tokens(kSelfAttention, cache, counts);
  return forward_appended(x, tokens);
}

at::Tensor SelfAttentionImpl::forward_cached(const at::Tensor& x, PagedStep& step,
                                             int64_t layer) const {
  detail::TokensOfStep tokens(kSelfAttention, x, step, layer);
  return forward_appended(x, tokens);
}

KVCache SelfAttentionImpl::make_cache(int64_t batch, int64_t capacity,
                                      const CacheOptions& cache_options) const {
  return detail::make_cache(head_sizes, /*window=*/{}, batch, capacity, cache_options,
                            keys->weight);
}

PagedKVCache SelfAttentionImpl::make_paged_cache(int64_t pages,
                                                 const PagedCacheOptions& cache_options) const {
  return detail::make_paged_cache(head_sizes, /*window=*/{}, pages, cache_options, keys->weight);
}

}  // namespace heed
