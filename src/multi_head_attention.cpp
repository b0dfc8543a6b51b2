#include <heed/multi_head_attention.h>

#include <utility>

#include "checks.h"
#include "head_projections.h"

namespace heed {

namespace {

struct Heads {
  at::Tensor query;  // [B, H, L, D]
  at::Tensor key;    // [B, G, S, D]
  at::Tensor value;  // [B, G, S, Dv]
};

void check_packed(const char* function, const char* name, const at::Tensor& tensor, int64_t heads,
                  const char* heads_name) {
  HEED_CHECK(tensor.defined(), "{}: {} must be defined", function, name);
  HEED_CHECK(tensor.dim() == 3, "{}: {} rank ({}) must equal 3; {} {}", function, name,
             tensor.dim(), name, detail::shape(tensor));
  HEED_CHECK(tensor.size(2) >= heads && tensor.size(2) % heads == 0,
             "{}: {} dim 2 ({}) must be a positive multiple of {} ({}); {} {}", function, name,
             tensor.size(2), heads_name, heads, name, detail::shape(tensor));
}

/// [B, L, heads * D] to [B, heads, L, D], a view.
at::Tensor split_heads(const at::Tensor& packed, int64_t heads) {
  return packed.unflatten(2, {heads, packed.size(2) / heads}).transpose(1, 2);
}

/// [B, H, L, Dv] to [B, L, H * Dv]; a view of what the fused kernels return.
at::Tensor merge_heads(const at::Tensor& heads) { return heads.transpose(1, 2).flatten(2); }

Heads checked_heads(const char* function, const at::Tensor& query, const at::Tensor& key,
                    const at::Tensor& value, int64_t num_heads) {
  detail::check_positive(function, "num_heads", num_heads);
  check_packed(function, "query", query, num_heads, "num_heads");
  const auto head_dim = query.size(2) / num_heads;
  check_packed(function, "key", key, head_dim, "head dim");
  const auto groups = key.size(2) / head_dim;
  check_packed(function, "value", value, groups, "key heads");
  return {split_heads(query, num_heads), split_heads(key, groups), split_heads(value, groups)};
}

}  // namespace

at::Tensor multi_head_attention(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, int64_t num_heads,
                                const AttendOptions& options) {
  const auto heads = checked_heads("multi_head_attention", query, key, value, num_heads);
  return merge_heads(attend(heads.query, heads.key, heads.value, options));
}

std::tuple<at::Tensor, at::Tensor> multi_head_attention_with_weights(const at::Tensor& query,
                                                                     const at::Tensor& key,
                                                                     const at::Tensor& value,
                                                                     int64_t num_heads,
                                                                     const AttendOptions& options) {
  const auto heads =
      checked_heads("multi_head_attention_with_weights", query, key, value, num_heads);
  auto [output, weights] = attend_with_weights(heads.query, heads.key, heads.value, options);
  return {merge_heads(output), weights};
}

MultiHeadAttentionImpl::MultiHeadAttentionImpl(const MultiHeadAttentionOptions& options)
    : options(options) {
  reset();
}

MultiHeadAttentionImpl::MultiHeadAttentionImpl(int64_t emb_dim, int64_t head_nums, double dropout)
    : MultiHeadAttentionImpl(MultiHeadAttentionOptions(emb_dim, head_nums).dropout(dropout)) {}

void MultiHeadAttentionImpl::reset() {
  detail::check_divisible("MultiHeadAttention", "emb_dim", options.emb_dim(), "head_nums",
                          options.head_nums());
  detail::check_probability("MultiHeadAttention", "dropout", options.dropout());
  const auto width = options.emb_dim();
  fc_q = register_module("fc_q", torch::nn::Linear(width, width));
  fc_k = register_module("fc_k", torch::nn::Linear(width, width));
  fc_v = register_module("fc_v", torch::nn::Linear(width, width));
  fc_out = register_module("fc_out", torch::nn::Linear(width, width));
}

void MultiHeadAttentionImpl::reset_parameters() {
  for (auto* linear : {&fc_q, &fc_k, &fc_v, &fc_out}) (*linear)->reset_parameters();
}

void MultiHeadAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "heed::MultiHeadAttention(emb_dim=" << options.emb_dim()
         << ", head_nums=" << options.head_nums() << ", dropout=" << options.dropout() << ")";
}

detail::HeadProjections MultiHeadAttentionImpl::projections() const {
  return {"MultiHeadAttention", fc_q, fc_k, fc_v, fc_out, options.head_nums()};
}

AttendOptions MultiHeadAttentionImpl::attend_options(const std::optional<at::Tensor>& mask) const {
  return detail::call_options(mask, options.dropout(), is_training());
}

at::Tensor MultiHeadAttentionImpl::forward(const at::Tensor& x,
                                           const std::optional<at::Tensor>& mask) {
  return std::as_const(*this).forward(x, x, x, mask);
}

at::Tensor MultiHeadAttentionImpl::forward(const at::Tensor& query, const at::Tensor& key,
                                           const at::Tensor& value,
                                           const std::optional<at::Tensor>& mask) const {
  return projections().forward(query, key, value, attend_options(mask));
}

std::tuple<at::Tensor, at::Tensor> MultiHeadAttentionImpl::forward_with_weights(
    const at::Tensor& x, const std::optional<at::Tensor>& mask) const {
  return forward_with_weights(x, x, x, mask);
}

std::tuple<at::Tensor, at::Tensor> MultiHeadAttentionImpl::forward_with_weights(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& mask) const {
  return projections().forward_with_weights(query, key, value, attend_options(mask));
}

}  // namespace heed
