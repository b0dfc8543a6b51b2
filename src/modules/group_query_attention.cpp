#include <heed/group_query_attention.h>

#include <utility>

#include "core/checks.h"
#include "modules/head_options.h"
#include "modules/head_projections.h"

namespace heed {

GroupQueryAttentionImpl::GroupQueryAttentionImpl(const GroupQueryAttentionOptions& options)
    : options(options) {
  reset();
}

GroupQueryAttentionImpl::GroupQueryAttentionImpl(int64_t emb_dim, int64_t head_num,
                                                 int64_t group_num)
    : GroupQueryAttentionImpl(GroupQueryAttentionOptions(emb_dim, head_num, group_num)) {}

void GroupQueryAttentionImpl::reset() {
  constexpr auto kName = "GroupQueryAttention";
  const auto head_dim = detail::checked_head_dim(kName, options, "head_num", options.head_num());
  detail::check_divisible(kName, "head_num", options.head_num(), "group_num", options.group_num());
  detail::check_positive(kName, "head_dim", head_dim);
  detail::check_head_options(kName, options);

  const auto width = options.emb_dim();
  const auto queries = options.head_num() * head_dim;
  const auto keys = options.group_num() * head_dim;
  detail::register_head_parts(kName, *this, options.head_num(), head_dim);
  fc_q = register_module("fc_q", detail::make_linear(width, queries, options.input_bias()));
  fc_k = register_module("fc_k", detail::make_linear(width, keys, options.input_bias()));
  fc_v = register_module("fc_v", detail::make_linear(width, keys, options.input_bias()));
  fc_o = register_module("fc_o", detail::make_linear(queries, width, options.output_bias()));
}

void GroupQueryAttentionImpl::reset_parameters() {
  for (auto* linear : {&fc_q, &fc_k, &fc_v, &fc_o}) (*linear)->reset_parameters();
  detail::reset_head_parts(*this);
}

void GroupQueryAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "heed::GroupQueryAttention(emb_dim=" << options.emb_dim()
         << ", head_num=" << options.head_num() << ", group_num=" << options.group_num()
         << ", dropout=" << options.dropout();
  detail::print_option(stream, "head_dim", options.head_dim());
  detail::print_head_options(stream, options, rotary);
  stream << ")";
}

detail::HeadProjections GroupQueryAttentionImpl::projections() const {
  return {"GroupQueryAttention",         fc_q, fc_k, fc_v, fc_o, options.head_num(),
          detail::head_transforms(*this)};
}

AttendOptions GroupQueryAttentionImpl::attend_options(const std::optional<at::Tensor>& mask) const {
  return detail::head_call_options(*this, options.head_num(), mask);
}

at::Tensor GroupQueryAttentionImpl::forward(const at::Tensor& x,
                                            const std::optional<at::Tensor>& mask) {
  return std::as_const(*this).forward(x, x, x, mask);
}

at::Tensor GroupQueryAttentionImpl::forward(const at::Tensor& query, const at::Tensor& key,
                                            const at::Tensor& value,
                                            const std::optional<at::Tensor>& mask) const {
  return projections().forward(query, key, value, attend_options(mask));
}

at::Tensor GroupQueryAttentionImpl::forward(const at::Tensor& x, KVCache& cache,
                                            at::IntArrayRef counts) const {
  return projections().forward_cached(x, cache, counts, attend_options({}));
}

std::tuple<at::Tensor, at::Tensor> GroupQueryAttentionImpl::forward_with_weights(
    const at::Tensor& x, const std::optional<at::Tensor>& mask) const {
  return forward_with_weights(x, x, x, mask);
}

std::tuple<at::Tensor, at::Tensor> GroupQueryAttentionImpl::forward_with_weights(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& mask) const {
  return projections().forward_with_weights(query, key, value, attend_options(mask));
}

}  // namespace heed
