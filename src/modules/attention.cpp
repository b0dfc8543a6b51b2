#include <heed/attention.h>
#include <heed/multi_head_attention.h>

#include "core/checks.h"
#include "modules/head_projections.h"
#include "modules/module_checks.h"

namespace heed {

namespace {

using OutputAndWeights = std::tuple<at::Tensor, at::Tensor>;

void check_options(const char* module, const AttentionOptions& options) {
  detail::check_positive(module, "emb_dim", options.emb_dim());
  detail::check_probability(module, "dropout", options.dropout());
}

/// One head: the head axis of the weights goes.
OutputAndWeights single_head_with_weights(const at::Tensor& query, const at::Tensor& key,
                                          const at::Tensor& value, const AttendOptions& options) {
  auto [output, weights] = multi_head_attention_with_weights(query, key, value, 1, options);
  return {output, weights.squeeze(1)};
}

void print(std::ostream& stream, const char* module, const AttentionOptions& options) {
  stream << "heed::" << module << "(emb_dim=" << options.emb_dim()
         << ", dropout=" << options.dropout() << ")";
}

}  // namespace

AttentionImpl::AttentionImpl(const AttentionOptions& options) : options(options) { reset(); }

AttentionImpl::AttentionImpl(int64_t emb_dim, double dropout)
    : AttentionImpl(AttentionOptions(emb_dim).dropout(dropout)) {}

void AttentionImpl::reset() {
  check_options("Attention", options);
  const auto width = options.emb_dim();
  fc_q = register_module("fc_q", torch::nn::Linear(width, width));
  fc_k = register_module("fc_k", torch::nn::Linear(width, width));
  fc_v = register_module("fc_v", torch::nn::Linear(width, width));
}

void AttentionImpl::reset_parameters() {
  for (auto* linear : {&fc_q, &fc_k, &fc_v}) (*linear)->reset_parameters();
}

void AttentionImpl::pretty_print(std::ostream& stream) const {
  print(stream, "Attention", options);
}

at::Tensor AttentionImpl::forward(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  detail::check_input("Attention", "x", x, fc_q->weight);
  return multi_head_attention(detail::project(fc_q, x), detail::project(fc_k, x),
                              detail::project(fc_v, x), 1,
                              detail::call_options(mask, options.dropout(), is_training()));
}

OutputAndWeights AttentionImpl::forward_with_weights(const at::Tensor& x,
                                                     const std::optional<at::Tensor>& mask) const {
  detail::check_input("Attention", "x", x, fc_q->weight);
  return single_head_with_weights(detail::project(fc_q, x), detail::project(fc_k, x),
                                  detail::project(fc_v, x),
                                  detail::call_options(mask, options.dropout(), is_training()));
}

AttentionV1Impl::AttentionV1Impl(const AttentionOptions& options) : options(options) { reset(); }

AttentionV1Impl::AttentionV1Impl(int64_t emb_dim, double dropout)
    : AttentionV1Impl(AttentionOptions(emb_dim).dropout(dropout)) {}

void AttentionV1Impl::reset() {
  check_options("AttentionV1", options);
  qkv = register_module("qkv", torch::nn::Linear(options.emb_dim(), 3 * options.emb_dim()));
}

void AttentionV1Impl::reset_parameters() { qkv->reset_parameters(); }

void AttentionV1Impl::pretty_print(std::ostream& stream) const {
  print(stream, "AttentionV1", options);
}

at::Tensor AttentionV1Impl::forward(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  detail::check_input("AttentionV1", "x", x, qkv->weight);
  const auto packed = detail::project(qkv, x).chunk(3, -1);  // each [B, L, E]
  return multi_head_attention(packed[0], packed[1], packed[2], 1,
                              detail::call_options(mask, options.dropout(), is_training()));
}

OutputAndWeights AttentionV1Impl::forward_with_weights(
    const at::Tensor& x, const std::optional<at::Tensor>& mask) const {
  detail::check_input("AttentionV1", "x", x, qkv->weight);
  const auto packed = detail::project(qkv, x).chunk(3, -1);  // each [B, L, E]
  return single_head_with_weights(packed[0], packed[1], packed[2],
                                  detail::call_options(mask, options.dropout(), is_training()));
}

}  // namespace heed
