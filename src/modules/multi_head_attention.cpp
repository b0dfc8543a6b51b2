#include <heed/multi_head_attention.h>

#include <utility>

#include "core/checks.h"
#include "modules/head_options.h"
#include "modules/head_projections.h"
#include "modules/heads.h"

namespace heed {

namespace {

void check_packed(const char* function, const char* name, const at::Tensor& tensor, int64_t heads,
                  const char* heads_name) {
  HEED_CHECK(tensor.defined(), "{}: {} must be defined", function, name);
  HEED_CHECK(tensor.dim() == 3, "{}: {} rank ({}) must equal 3; {} {}", function, name,
             tensor.dim(), name, detail::shape(tensor));
  HEED_CHECK(tensor.size(2) >= heads && tensor.size(2) % heads == 0,
             "{}: {} dim 2 ({}) must be a positive multiple of {} ({}); {} {}", function, name,
             tensor.size(2), heads_name, heads, name, detail::shape(tensor));
}

detail::Heads checked_heads(const char* function, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, int64_t num_heads) {
  detail::check_positive(function, "num_heads", num_heads);
  check_packed(function, "query", query, num_heads, "num_heads");
  const auto head_dim = query.size(2) / num_heads;
  check_packed(function, "key", key, head_dim, "head dim");
  const auto groups = key.size(2) / head_dim;
  check_packed(function, "value", value, groups, "key heads");
  return {detail::split_heads(query, num_heads), detail::split_heads(key, groups),
          detail::split_heads(value, groups)};
}

}  // namespace

at::Tensor multi_head_attention(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, int64_t num_heads,
                                const AttendOptions& options) {
  const auto heads = checked_heads("multi_head_attention", query, key, value, num_heads);
  return detail::merge_heads(attend(heads.query, heads.key, heads.value, options));
}

std::tuple<at::Tensor, at::Tensor> multi_head_attention_with_weights(const at::Tensor& query,
                                                                     const at::Tensor& key,
                                                                     const at::Tensor& value,
                                                                     int64_t num_heads,
                                                                     const AttendOptions& options) {
  const auto heads =
      checked_heads("multi_head_attention_with_weights", query, key, value, num_heads);
  auto [output, weights] = attend_with_weights(heads.query, heads.key, heads.value, options);
  return {detail::merge_heads(output), weights};
}

MultiHeadAttentionImpl::MultiHeadAttentionImpl(const MultiHeadAttentionOptions& options)
    : options(options) {
  reset();
}

MultiHeadAttentionImpl::MultiHeadAttentionImpl(int64_t emb_dim, int64_t head_nums, double dropout)
    : MultiHeadAttentionImpl(MultiHeadAttentionOptions(emb_dim, head_nums).dropout(dropout)) {}

void MultiHeadAttentionImpl::reset() {
  constexpr auto kName = "MultiHeadAttention";
  const auto head_dim = detail::checked_head_dim(kName, options, "head_nums", options.head_nums());
  const auto key_emb_dim = options.key_emb_dim().value_or(options.emb_dim());
  const auto value_emb_dim = options.value_emb_dim().value_or(options.emb_dim());
  const auto value_head_dim = options.value_head_dim().value_or(head_dim);
  detail::check_positive(kName, "key_emb_dim", key_emb_dim);
  detail::check_positive(kName, "value_emb_dim", value_emb_dim);
  detail::check_positive(kName, "head_dim", head_dim);
  detail::check_positive(kName, "value_head_dim", value_head_dim);
  detail::check_head_options(kName, options);

  const auto keys = options.head_nums() * head_dim;
  const auto values = options.head_nums() * value_head_dim;
  detail::register_head_parts(kName, *this, options.head_nums(), head_dim);
  fc_q =
      register_module("fc_q", detail::make_linear(options.emb_dim(), keys, options.input_bias()));
  fc_k = register_module("fc_k", detail::make_linear(key_emb_dim, keys, options.input_bias()));
  fc_v = register_module("fc_v", detail::make_linear(value_emb_dim, values, options.input_bias()));
  fc_out = register_module("fc_out",
                           detail::make_linear(values, options.emb_dim(), options.output_bias()));
}

void MultiHeadAttentionImpl::reset_parameters() {
  for (auto* linear : {&fc_q, &fc_k, &fc_v, &fc_out}) (*linear)->reset_parameters();
  detail::reset_head_parts(*this);
}

void MultiHeadAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "heed::MultiHeadAttention(emb_dim=" << options.emb_dim()
         << ", head_nums=" << options.head_nums() << ", dropout=" << options.dropout();
  detail::print_option(stream, "key_emb_dim", options.key_emb_dim());
  detail::print_option(stream, "value_emb_dim", options.value_emb_dim());
  detail::print_option(stream, "head_dim", options.head_dim());
  detail::print_option(stream, "value_head_dim", options.value_head_dim());
  detail::print_head_options(stream, options, rotary);
  stream << ")";
}

detail::HeadProjections MultiHeadAttentionImpl::projections() const {
  return {"MultiHeadAttention",
          fc_q,
          fc_k,
          fc_v,
          fc_out,
          options.head_nums(),
          detail::head_transforms(*this),
          options.key_emb_dim() ? "key_emb_dim" : "emb_dim",
          options.value_emb_dim() ? "value_emb_dim" : "emb_dim"};
}

AttendOptions MultiHeadAttentionImpl::attend_options(const std::optional<at::Tensor>& mask) const {
  return detail::head_call_options(*this, options.head_nums(), mask);
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

at::Tensor MultiHeadAttentionImpl::forward(const at::Tensor& x, KVCache& cache,
                                           at::IntArrayRef counts) const {
  return projections().forward_cached(x, cache, counts, attend_options({}));
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
