// SPDX-License-Identifier: BSD-3-Clause
#include <heed/differential_attention.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/nn/init.h>

#include <cmath>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "modules/attentions/calls.h"
#include "modules/caches/caches.h"
#include "modules/count.h"
#include "modules/heads.h"
#include "modules/layers/linear.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kDifferentialAttention = "DifferentialAttention";

/// Views the first or second head of each pair: [B, H, L, 2 D] becomes [B, H, L, D].
at::Tensor half(const at::Tensor& pairs, int64_t which) {
  const auto width = pairs.size(3) / 2;
  return pairs.narrow(3, which * width, width);
}

at::Tensor rotate_pairs(const RotaryEmbedding& rotary, const at::Tensor& pairs,
                        const RotaryAngles& angles) {
  return at::cat({rotary->rotate(half(pairs, 0), angles), rotary->rotate(half(pairs, 1), angles)},
                 3);
}

/// Projects x, and rotates query and key if the module has a rotary embedding.
detail::Heads project_heads(const DifferentialAttentionImpl& module, const at::Tensor& x,
                            const RotaryAngles& angles) {
  const auto packed = detail::project_together({module.fc_q, module.fc_k, module.fc_v}, x);
  const auto heads = [&](size_t i) {
    return detail::split_heads(packed[i], module.head_sizes.heads);
  };
  detail::Heads result{heads(0), heads(1), heads(2)};
  if (const auto& rotary = module.rotary) {
    result.query = rotate_pairs(rotary, result.query, angles);
    result.key = rotate_pairs(rotary, result.key, angles);
  }
  return result;
}

}  // namespace

DifferentialAttentionImpl::DifferentialAttentionImpl(const DifferentialAttentionOptions& options)
    : options(options) {
  reset();
}

void DifferentialAttentionImpl::reset() {
  const auto width = options.emb_dim();
  detail::check_positive(kDifferentialAttention, "emb_dim", width);
  detail::check_positive(kDifferentialAttention, "head_num", options.head_num());
  const auto halves = (detail::Count(2) * options.head_num()).value();
  detail::check_divisible(kDifferentialAttention, "emb_dim", width, "2 head_num", halves);
  detail::check_not_negative(kDifferentialAttention, "layer", options.layer());
  detail::check_score_options(kDifferentialAttention,
                              AttendOptions().dropout(options.dropout()).window(options.window()));
  const auto head_dim = width / halves, heads = options.head_num();
  head_sizes = {heads, heads, 2 * head_dim, 2 * head_dim};
  rotary = detail::make_rotary(kDifferentialAttention, options.rotary(), head_dim);
  const auto linear = [&](const char* name) {
    return register_module(name, detail::make_linear(width, width, options.bias()));
  };
  fc_q = linear("fc_q");
  fc_k = linear("fc_k");
  fc_v = linear("fc_v");
  fc_out = linear("fc_out");
  const auto vector = [&](const char* name) {
    return register_parameter(name, at::empty({head_dim}));
  };
  lambda_q1 = vector("lambda_q1");
  lambda_k1 = vector("lambda_k1");
  lambda_q2 = vector("lambda_q2");
  lambda_k2 = vector("lambda_k2");
  norm = register_module("norm", RMSNorm(2 * head_dim, 1e-5));
  reset_parameters();
}

void DifferentialAttentionImpl::reset_parameters() {
  for (auto* linear : {&fc_q, &fc_k, &fc_v, &fc_out}) detail::reset_parameters(*linear);
  for (const auto& vector : {lambda_q1, lambda_k1, lambda_q2, lambda_k2}) {
    torch::nn::init::normal_(vector, 0.0, 0.1);
  }
  norm->reset_parameters();
}

void DifferentialAttentionImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter printer(stream, kDifferentialAttention);
  printer.show("emb_dim", options.emb_dim())
      .show("head_num", options.head_num())
      .show("layer", options.layer())
      .show("dropout", options.dropout())
      .option("bias", options.bias(), false)
      .option("causal", options.causal(), false)
      .option("window", options.window());
  if (rotary) printer.show("rotary", *rotary);
}

double DifferentialAttentionImpl::first_lambda() const {
  return 0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(options.layer()));
}

/// Returns the module's output [B, L, E] from the attentions [B, H, L, 2 D] of the first and
/// second heads of each pair: first - lambda * second, normalized and projected.
at::Tensor DifferentialAttentionImpl::difference(const at::Tensor& first,
                                                 const at::Tensor& second) const {
  const auto lambda =
      (lambda_q1 * lambda_k1).sum().exp() - (lambda_q2 * lambda_k2).sum().exp() + first_lambda();
  const auto heads = (first - lambda * second).transpose(1, 2);  // [B, L, H, 2 D]
  const auto normed = norm.ptr()->forward(heads) * (1.0 - first_lambda());
  return detail::project(fc_out, normed.flatten(2));
}

at::Tensor DifferentialAttentionImpl::forward(const at::Tensor& x,
                                              const std::optional<at::Tensor>& mask) {
  detail::check_input(kDifferentialAttention, "x", x, fc_q->weight);
  const auto angles = rotary ? rotary->angles(0, x.size(1), x.options()) : RotaryAngles();
  const auto [query, key, value] = project_heads(*this, x, angles);
  const auto call =
      detail::call_options(kDifferentialAttention, mask, options.dropout(), is_training())
          .causal(options.causal())
          .window(options.window());
  const auto attended = [&, &query = query, &key = key, &value = value](int64_t i) {
    return attend(half(query, i), half(key, i), value, call);
  };
  return difference(attended(0), attended(1));
}

at::Tensor DifferentialAttentionImpl::forward_appended(const at::Tensor& x,
                                                       detail::AppendedTokens& tokens) const {
  detail::check_input(kDifferentialAttention, "x", x, fc_q->weight);
  const auto call =
      detail::call_options(kDifferentialAttention, {}, options.dropout(), is_training())
          .window(options.window());
  tokens.check(call);
  const auto angles = rotary ? tokens.angles(rotary, x.size(1), x.options()) : RotaryAngles();
  const auto [query, key, value] = project_heads(*this, x, angles);
  tokens.append(tokens.as_cached(key), tokens.as_cached(value));
  const auto attended = [&, queries = tokens.as_cached(query)](int64_t i) {
    return tokens.attend({half(queries, i), half(tokens.keys(), i), tokens.values()}, call);
  };
  return difference(attended(0), attended(1));
}

at::Tensor DifferentialAttentionImpl::forward_cached(const at::Tensor& x, KVCache& cache,
                                                     at::IntArrayRef counts) const {
  detail::TokensOfBatch tokens(kDifferentialAttention, cache, counts);
  return forward_appended(x, tokens);
}

at::Tensor DifferentialAttentionImpl::forward_cached(const at::Tensor& x, PagedStep& step,
                                                     int64_t layer) const {
  detail::TokensOfStep tokens(kDifferentialAttention, x, step, layer);
  return forward_appended(x, tokens);
}

PagedKVCache DifferentialAttentionImpl::make_paged_cache(
    int64_t pages, const PagedCacheOptions& cache_options) const {
  return detail::make_paged_cache(head_sizes, options.window(), pages, cache_options, fc_k->weight);
}

KVCache DifferentialAttentionImpl::make_cache(int64_t batch, int64_t capacity,
                                              const CacheOptions& cache_options) const {
  return detail::make_cache(head_sizes, options.window(), batch, capacity, cache_options,
                            fc_k->weight);
}

}  // namespace heed
