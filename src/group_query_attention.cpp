#include <heed/group_query_attention.h>

#include <utility>

#include "checks.h"
#include "head_projections.h"

namespace heed {

GroupQueryAttentionImpl::GroupQueryAttentionImpl(const GroupQueryAttentionOptions& options)
    : options(options) {
  reset();
}

GroupQueryAttentionImpl::GroupQueryAttentionImpl(int64_t emb_dim, int64_t head_num,
                                                 int64_t group_num)
    : GroupQueryAttentionImpl(GroupQueryAttentionOptions(emb_dim, head_num, group_num)) {}

void GroupQueryAttentionImpl::reset() {
  detail::check_divisible("GroupQueryAttention", "emb_dim", options.emb_dim(), "head_num",
                          options.head_num());
  detail::check_divisible("GroupQueryAttention", "head_num", options.head_num(), "group_num",
                          options.group_num());
  detail::check_probability("GroupQueryAttention", "dropout", options.dropout());
  const auto width = options.emb_dim();
  const auto key_width = width / options.head_num() * options.group_num();
  fc_q = register_module("fc_q", torch::nn::Linear(width, width));
  fc_k = register_module("fc_k", torch::nn::Linear(width, key_width));
  fc_v = register_module("fc_v", torch::nn::Linear(width, key_width));
  fc_o = register_module("fc_o", torch::nn::Linear(width, width));
}

void GroupQueryAttentionImpl::reset_parameters() {
  for (auto* linear : {&fc_q, &fc_k, &fc_v, &fc_o}) (*linear)->reset_parameters();
}

void GroupQueryAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "heed::GroupQueryAttention(emb_dim=" << options.emb_dim()
         << ", head_num=" << options.head_num() << ", group_num=" << options.group_num()
         << ", dropout=" << options.dropout() << ")";
}

detail::HeadProjections GroupQueryAttentionImpl::projections() const {
  return {"GroupQueryAttention", fc_q, fc_k, fc_v, fc_o, options.head_num()};
}

AttendOptions GroupQueryAttentionImpl::attend_options(const std::optional<at::Tensor>& mask) const {
  return detail::call_options(mask, options.dropout(), is_training());
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
