// SPDX-License-Identifier: BSD-3-Clause
#include <heed/latent_attention.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include <cmath>
#include <optional>
#include <variant>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "modules/attentions/cached_sizes.h"
#include "modules/attentions/calls.h"
#include "modules/attentions/given_inputs.h"
#include "modules/caches/caches.h"
#include "modules/count.h"
#include "modules/heads.h"
#include "modules/layers/linear.h"
#include "modules/layers/parameters.h"
#include "modules/layers/yarn.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kLatentAttention = "LatentAttention";

using detail::Count;

/// The default scale, 1 / sqrt(D). With YaRN it is multiplied by the square of YaRN's magnitude,
/// as in DeepSeek's models.
double default_scale(const LatentAttentionOptions& options, int64_t head_dim) {
  const auto scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  const auto& scaling = options.rotary() ? options.rotary()->scaling() : std::nullopt;
  const auto* yarn = scaling ? std::get_if<YarnScaling>(&*scaling) : nullptr;
  if (yarn == nullptr) return scale;
  const auto magnitude = detail::yarn_magnitude(*yarn, yarn->mscale_all_dim());
  return scale * magnitude * magnitude;
}

}  // namespace

/// The projections of a call's tokens. Keys and values are still latent vectors without heads.
struct LatentAttentionImpl::Parts {
  at::Tensor query_plain;    // [B, H, L, plain_head_dim]
  at::Tensor query_rotated;  // [B, H, L, rotary_head_dim]
  at::Tensor latent;         // [B, 1, L, R]
  at::Tensor key_rotated;    // [B, 1, L, rotary_head_dim]
};

/// The query, key and value of a call without a cache, [B, H, L, D] or [B, H, L, Dv].
struct LatentAttentionImpl::Heads {
  at::Tensor query, key, value;
};

LatentAttentionImpl::LatentAttentionImpl(const LatentAttentionOptions& options) : options(options) {
  reset();
}

void LatentAttentionImpl::reset() {
  detail::check_positive(kLatentAttention, "emb_dim", options.emb_dim());
  detail::check_positive(kLatentAttention, "head_num", options.head_num());
  detail::check_positive(kLatentAttention, "key_rank", options.key_rank());
  detail::check_positive(kLatentAttention, "query_rank", options.query_rank().value_or(1));
  detail::check_positive(kLatentAttention, "plain_head_dim", options.plain_head_dim());
  detail::check_positive(kLatentAttention, "rotary_head_dim", options.rotary_head_dim());
  detail::check_positive(kLatentAttention, "value_head_dim", options.value_head_dim());
  detail::check_score_options(kLatentAttention,
                              AttendOptions().dropout(options.dropout()).scale(options.scale()));
  const auto rotating =
      RotaryEmbeddingOptions(options.rotary_head_dim()).pairing(RotaryPairing::interleaved);
  rotary = detail::make_rotary(kLatentAttention, options.rotary().value_or(rotating),
                               options.rotary_head_dim());

  const auto linear = [&](const char* name, Count in, Count out, bool bias = false) {
    return register_module(name, detail::make_linear(in.value(), out.value(), bias));
  };
  const auto norm = [&](const char* name, int64_t dim) {
    return register_module(name, RMSNorm(dim, options.norm_eps()));
  };
  const auto width = options.emb_dim(), rank = options.key_rank();
  const Count heads = options.head_num(), plain = options.plain_head_dim();
  const auto head_dim = plain + options.rotary_head_dim();
  head_sizes = {options.head_num(), options.head_num(), head_dim.value(), options.value_head_dim()};
  const auto queries = heads * head_dim;
  if (const auto query_rank = options.query_rank()) {
    fc_q_down = linear("fc_q_down", width, *query_rank, options.bias());
    q_norm = norm("q_norm", *query_rank);
    fc_q_up = linear("fc_q_up", *query_rank, queries);
  } else {
    fc_q = linear("fc_q", width, queries);
  }
  fc_kv_down = linear("fc_kv_down", width, Count(rank) + options.rotary_head_dim(), options.bias());
  kv_norm = norm("kv_norm", rank);
  fc_kv_up = linear("fc_kv_up", rank, heads * (plain + options.value_head_dim()));
  fc_o = linear("fc_o", heads * options.value_head_dim(), width, options.bias());
}

void LatentAttentionImpl::reset_parameters() {
  for (auto* linear : {&fc_q, &fc_q_down, &fc_q_up, &fc_kv_down, &fc_kv_up, &fc_o}) {
    if (*linear) detail::reset_parameters(*linear);
  }
  if (q_norm) q_norm->reset_parameters();
  kv_norm->reset_parameters();
}

void LatentAttentionImpl::pretty_print(std::ostream& stream) const {
  const LatentAttentionOptions defaults(options.emb_dim(), options.head_num(), options.key_rank());
  detail::ModulePrinter printer(stream, kLatentAttention);
  printer.show("emb_dim", options.emb_dim())
      .show("head_num", options.head_num())
      .show("key_rank", options.key_rank())
      .option("query_rank", options.query_rank())
      .show("plain_head_dim", options.plain_head_dim())
      .show("rotary_head_dim", options.rotary_head_dim())
      .show("value_head_dim", options.value_head_dim())
      .option("scale", options.scale())
      .option("dropout", options.dropout(), defaults.dropout())
      .option("norm_eps", options.norm_eps(), defaults.norm_eps())
      .option("causal", options.causal(), defaults.causal())
      .option("bias", options.bias(), defaults.bias());
  if (options.rotary()) printer.show("rotary", *rotary);
}

LatentAttentionImpl::Parts LatentAttentionImpl::project(const at::Tensor& x,
                                                        const RotaryAngles& angles) const {
  const auto plain = options.plain_head_dim(), rotating = options.rotary_head_dim();
  const auto first = detail::project_together({fc_q ? fc_q : fc_q_down, fc_kv_down}, x);
  const auto queries = fc_q ? first[0] : detail::project(fc_q_up, q_norm.ptr()->forward(first[0]));
  const auto query = detail::split_heads(queries, head_sizes.heads);
  const auto& down = first[1];
  const auto rank = options.key_rank();
  return {query.narrow(3, 0, plain), rotary->rotate(query.narrow(3, plain, rotating), angles),
          kv_norm.ptr()->forward(down.narrow(2, 0, rank)).unsqueeze(1),
          rotary->rotate(down.narrow(2, rank, rotating).unsqueeze(1), angles)};
}

AttendOptions LatentAttentionImpl::attend_options(const AttentionInputs& inputs) const {
  if (const auto& mask = inputs.mask()) {
    detail::check_mask_dtype(kLatentAttention, "mask", *mask, /*takes_bias=*/true);
  }
  return detail::given_options(inputs)
      .dropout(is_training() ? options.dropout() : 0.0)
      .scale(options.scale().value_or(default_scale(options, head_sizes.head_dim)))
      .causal(options.causal());
}

at::Tensor LatentAttentionImpl::output(const at::Tensor& attended) const {
  return detail::project(fc_o, detail::merge_heads(attended));
}

LatentAttentionImpl::Heads LatentAttentionImpl::project_heads(const at::Tensor& x,
                                                              const AttentionInputs& inputs) const {
  detail::check_input(kLatentAttention, "x", x, fc_kv_down->weight);
  const auto given =
      detail::given_angles(kLatentAttention, inputs, rotary, x, /*sequence=*/nullptr);
  const auto parts = project(x, given ? *given : rotary->angles(0, x.size(1), x.options()));
  const auto up =
      detail::split_heads(fc_kv_up.ptr()->forward(parts.latent.squeeze(1)), head_sizes.heads);
  const auto plain = options.plain_head_dim();
  const auto shared = parts.key_rotated.expand({-1, head_sizes.heads, -1, -1});
  return {at::cat({parts.query_plain, parts.query_rotated}, 3),
          at::cat({up.narrow(3, 0, plain), shared}, 3),
          up.narrow(3, plain, head_sizes.value_head_dim)};
}

at::Tensor LatentAttentionImpl::forward(const at::Tensor& x, const AttentionInputs& inputs) {
  const auto [query, key, value] = project_heads(x, inputs);
  return output(attend(query, key, value, attend_options(inputs)));
}

std::tuple<at::Tensor, at::Tensor> LatentAttentionImpl::forward_with_weights(
    const at::Tensor& x, const AttentionInputs& inputs) const {
  const auto [query, key, value] = project_heads(x, inputs);
  const auto [attended, weights] = attend_with_weights(query, key, value, attend_options(inputs));
  return {output(attended), weights};
}

at::Tensor LatentAttentionImpl::forward_appended(const at::Tensor& x,
                                                 detail::AppendedTokens& tokens,
                                                 const AttentionInputs& inputs) const {
  detail::check_input(kLatentAttention, "x", x, fc_kv_down->weight);
  detail::check_cached_inputs(kLatentAttention, inputs);
  const auto call = attend_options(inputs);
  tokens.check(call);
  const auto given =
      detail::given_angles(kLatentAttention, inputs, rotary, x, /*sequence=*/nullptr);
  const auto parts = project(x, given ? *given : tokens.angles(rotary, x.size(1), x.options()));
  const auto key = tokens.as_cached(at::cat({parts.latent, parts.key_rotated}, 3));
  tokens.append(key, key.narrow(3, 0, 0));

  const auto rank = options.key_rank();
  // The weights [H, plain_head_dim + Dv, R] project latent vectors to each head's key and value.
  // They are applied to the query and to the result, so that attention is computed on latent
  // vectors.
  const auto up = fc_kv_up->weight.unflatten(0, {head_sizes.heads, -1});
  const auto to_keys = up.narrow(1, 0, options.plain_head_dim());
  const auto to_values = up.narrow(1, options.plain_head_dim(), head_sizes.value_head_dim);
  const auto query = at::cat({at::matmul(parts.query_plain, to_keys), parts.query_rotated}, 3);
  const auto keys = tokens.keys();  // [B, 1, S, R + rotary_head_dim], or pages
  const auto latent = tokens.attend({tokens.as_cached(query), keys, keys.narrow(3, 0, rank)}, call);
  return output(at::matmul(latent, to_values.transpose(1, 2)));
}

at::Tensor LatentAttentionImpl::forward_cached(const at::Tensor& x, KVCache& cache,
                                               at::IntArrayRef counts,
                                               const AttentionInputs& inputs) const {
  detail::TokensOfBatch tokens(kLatentAttention, cache, counts);
  return forward_appended(x, tokens, inputs);
}

at::Tensor LatentAttentionImpl::forward_cached(const at::Tensor& x, PagedStep& step, int64_t layer,
                                               const AttentionInputs& inputs) const {
  detail::TokensOfStep tokens(kLatentAttention, x, step, layer);
  return forward_appended(x, tokens, inputs);
}

KVCache LatentAttentionImpl::make_cache(int64_t batch, int64_t capacity,
                                        const CacheOptions& cache_options) const {
  return detail::make_cache(detail::cached_sizes(*this), /*window=*/{}, batch, capacity,
                            cache_options, fc_kv_down->weight);
}

PagedKVCache LatentAttentionImpl::make_paged_cache(int64_t pages,
                                                   const PagedCacheOptions& cache_options) const {
  return detail::make_paged_cache(detail::cached_sizes(*this), /*window=*/{}, pages, cache_options,
                                  fc_kv_down->weight);
}

}  // namespace heed
