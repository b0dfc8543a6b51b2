// SPDX-License-Identifier: BSD-3-Clause
#include <heed/attend.h>
#include <heed/attention.h>

#include "core/checks.h"
#include "modules/attentions/calls.h"
#include "modules/caches/caches.h"
#include "modules/count.h"
#include "modules/layers/linear.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kAttention = "Attention";
constexpr auto kAttentionV1 = "AttentionV1";

const char* name_of(const AttentionImpl& /*module*/) { return kAttention; }
const char* name_of(const AttentionV1Impl& /*module*/) { return kAttentionV1; }

/// The weight that projects keys.
const at::Tensor& weight_of(const AttentionImpl& module) { return module.fc_k->weight; }
const at::Tensor& weight_of(const AttentionV1Impl& module) { return module.qkv->weight; }

HeadSizes one_head(const AttentionOptions& options) {
  return {1, 1, options.emb_dim(), options.emb_dim()};
}

/// Makes query, key and value one head each: [B, 1, L, E].
detail::Heads one_head(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return {detail::split_heads(query, 1), detail::split_heads(key, 1),
          detail::split_heads(value, 1)};
}

detail::Heads project(const AttentionImpl& module, const at::Tensor& x) {
  const auto packed = detail::project_together({module.fc_q, module.fc_k, module.fc_v}, x);
  return one_head(packed[0], packed[1], packed[2]);
}

detail::Heads project(const AttentionV1Impl& module, const at::Tensor& x) {
  const auto packed = detail::project(module.qkv, x).chunk(3, -1);  // each [B, L, E]
  return one_head(packed[0], packed[1], packed[2]);
}

template <typename Impl>
detail::Heads checked_heads(const Impl& module, const at::Tensor& x) {
  detail::check_input(name_of(module), "x", x, weight_of(module));
  return project(module, x);
}

void check_options(const char* module, const AttentionOptions& options) {
  detail::check_positive(module, "emb_dim", options.emb_dim());
  detail::check_probability(module, "dropout", options.dropout());
}

}  // namespace

template <typename Derived>
void AttentionImplBase<Derived>::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, name_of(static_cast<const Derived&>(*this)))
      .show("emb_dim", options.emb_dim())
      .show("dropout", options.dropout());
}

template <typename Derived>
at::Tensor AttentionImplBase<Derived>::forward(const at::Tensor& x,
                                               const std::optional<at::Tensor>& mask) {
  const auto heads = checked_heads(static_cast<const Derived&>(*this), x);
  const auto call = detail::call_options(name_of(static_cast<const Derived&>(*this)), mask,
                                         options.dropout(), this->is_training());
  return detail::merge_heads(attend(heads.query, heads.key, heads.value, call));
}

template <typename Derived>
std::tuple<at::Tensor, at::Tensor> AttentionImplBase<Derived>::forward_with_weights(
    const at::Tensor& x, const std::optional<at::Tensor>& mask) const {
  const auto heads = checked_heads(static_cast<const Derived&>(*this), x);
  const auto call = detail::call_options(name_of(static_cast<const Derived&>(*this)), mask,
                                         options.dropout(), this->is_training());
  const auto [output, weights] = attend_with_weights(heads.query, heads.key, heads.value, call);
  return {detail::merge_heads(output), weights.squeeze(1)};
}

template <typename Derived>
at::Tensor AttentionImplBase<Derived>::forward_appended(const at::Tensor& x,
                                                        detail::AppendedTokens& tokens) const {
  const auto* const name = name_of(static_cast<const Derived&>(*this));
  const auto call = detail::call_options(name, {}, options.dropout(), this->is_training());
  tokens.check(call);
  const auto heads = checked_heads(static_cast<const Derived&>(*this), x);
  return detail::merge_heads(tokens.append_and_attend(heads, call));
}

template <typename Derived>
at::Tensor AttentionImplBase<Derived>::forward_cached(const at::Tensor& x, KVCache& cache,
                                                      at::IntArrayRef counts) const {
  detail::TokensOfBatch tokens(name_of(static_cast<const Derived&>(*this)), cache, counts);
  return forward_appended(x, tokens);
}

template <typename Derived>
at::Tensor AttentionImplBase<Derived>::forward_cached(const at::Tensor& x, PagedStep& step,
                                                      int64_t layer) const {
  detail::TokensOfStep tokens(name_of(static_cast<const Derived&>(*this)), x, step, layer);
  return forward_appended(x, tokens);
}

template <typename Derived>
KVCache AttentionImplBase<Derived>::make_cache(int64_t batch, int64_t capacity,
                                               const CacheOptions& cache_options) const {
  return detail::make_cache(one_head(options), /*window=*/{}, batch, capacity, cache_options,
                            weight_of(static_cast<const Derived&>(*this)));
}

template <typename Derived>
PagedKVCache AttentionImplBase<Derived>::make_paged_cache(
    int64_t pages, const PagedCacheOptions& cache_options) const {
  return detail::make_paged_cache(one_head(options), /*window=*/{}, pages, cache_options,
                                  weight_of(static_cast<const Derived&>(*this)));
}

template class AttentionImplBase<AttentionImpl>;
template class AttentionImplBase<AttentionV1Impl>;

AttentionImpl::AttentionImpl(const AttentionOptions& options) : AttentionImplBase(options) {
  reset();
}

AttentionImpl::AttentionImpl(int64_t emb_dim, double dropout)
    : AttentionImpl(AttentionOptions(emb_dim).dropout(dropout)) {}

void AttentionImpl::reset() {
  check_options(kAttention, options);
  const auto width = options.emb_dim();
  fc_q = register_module("fc_q", detail::make_linear(width, width, /*bias=*/true));
  fc_k = register_module("fc_k", detail::make_linear(width, width, /*bias=*/true));
  fc_v = register_module("fc_v", detail::make_linear(width, width, /*bias=*/true));
}

void AttentionImpl::reset_parameters() {
  for (auto* linear : {&fc_q, &fc_k, &fc_v}) detail::reset_parameters(*linear);
}

AttentionV1Impl::AttentionV1Impl(const AttentionOptions& options) : AttentionImplBase(options) {
  reset();
}

AttentionV1Impl::AttentionV1Impl(int64_t emb_dim, double dropout)
    : AttentionV1Impl(AttentionOptions(emb_dim).dropout(dropout)) {}

void AttentionV1Impl::reset() {
  check_options(kAttentionV1, options);
  const detail::Count width = options.emb_dim();
  qkv = register_module("qkv",
                        detail::make_linear(width.value(), (3 * width).value(), /*bias=*/true));
}

void AttentionV1Impl::reset_parameters() { detail::reset_parameters(qkv); }

}  // namespace heed
