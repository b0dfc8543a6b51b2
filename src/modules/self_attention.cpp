#include <heed/self_attention.h>

#include <cmath>

#include "core/checks.h"
#include "modules/head_projections.h"
#include "modules/module_checks.h"

namespace heed {

namespace {

/// [B, L, E] to [B, H, L, D], each head through the same projection.
at::Tensor project_heads(const torch::nn::Linear& linear, const at::Tensor& input) {
  const auto head_dim = linear->weight.size(1);
  const auto heads = input.unflatten(2, {input.size(2) / head_dim, head_dim});
  return detail::project(linear, heads).transpose(1, 2);
}

}  // namespace

SelfAttentionImpl::SelfAttentionImpl(const SelfAttentionOptions& options) : options(options) {
  reset();
}

SelfAttentionImpl::SelfAttentionImpl(int64_t embed_size, int64_t heads)
    : SelfAttentionImpl(SelfAttentionOptions(embed_size, heads)) {}

void SelfAttentionImpl::reset() {
  detail::check_divisible("SelfAttention", "embed_size", options.embed_size(), "heads",
                          options.heads());
  const auto width = options.embed_size() / options.heads();
  const auto shared = torch::nn::LinearOptions(width, width).bias(false);
  values = register_module("values", torch::nn::Linear(shared));
  keys = register_module("keys", torch::nn::Linear(shared));
  queries = register_module("queries", torch::nn::Linear(shared));
  fc_out = register_module("fc_out", torch::nn::Linear(options.embed_size(), options.embed_size()));
}

void SelfAttentionImpl::reset_parameters() {
  for (auto* linear : {&values, &keys, &queries, &fc_out}) (*linear)->reset_parameters();
}

void SelfAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "heed::SelfAttention(embed_size=" << options.embed_size()
         << ", heads=" << options.heads() << ")";
}

std::tuple<at::Tensor, at::Tensor> SelfAttentionImpl::forward(
    const at::Tensor& value, const at::Tensor& key, const at::Tensor& query,
    const std::optional<at::Tensor>& mask) {
  constexpr auto kName = "SelfAttention";
  detail::check_input(kName, "value", value, fc_out->weight, "embed_size");
  detail::check_input(kName, "key", key, fc_out->weight, "embed_size");
  detail::check_input(kName, "query", query, fc_out->weight, "embed_size");
  detail::check_sources(kName, query, key, value);
  const auto scale = 1.0 / std::sqrt(static_cast<double>(options.embed_size()));
  const auto [attended, weights] =
      attend_with_weights(project_heads(queries, query), project_heads(keys, key),
                          project_heads(values, value), AttendOptions().mask(mask).scale(scale));
  return {detail::project(fc_out, attended.transpose(1, 2).flatten(2)), weights};
}

}  // namespace heed
