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
  constexpr auto kName = "GroupQueryAttention";
  detail::check_positive(kName, "emb_dim", options.emb_dim());
  detail::check_positive(kName, "head_num", options.head_num());
  if (!options.head_dim()) {
    detail::check_divisible(kName, "emb_dim", options.emb_dim(), "head_num", options.head_num());
  }
  detail::check_divisible(kName, "head_num", options.head_num(), "group_num", options.group_num());
  const auto head_dim = options.head_dim().value_or(options.emb_dim() / options.head_num());
  detail::check_positive(kName, "head_dim", head_dim);
  detail::check_score_options(
      kName,
      AttendOptions().dropout(options.dropout()).scale(options.scale()).window(options.window()));

  const auto linear = [](int64_t in, int64_t out, bool bias) {
    return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
  };
  const auto width = options.emb_dim();
  const auto queries = options.head_num() * head_dim;
  const auto keys = options.group_num() * head_dim;
  rotary = detail::make_rotary(kName, options.rotary(), head_dim);
  fc_q = register_module("fc_q", linear(width, queries, options.input_bias()));
  fc_k = register_module("fc_k", linear(width, keys, options.input_bias()));
  fc_v = register_module("fc_v", linear(width, keys, options.input_bias()));
  fc_o = register_module("fc_o", linear(queries, width, options.output_bias()));
}

void GroupQueryAttentionImpl::reset_parameters() {
  for (auto* linear : {&fc_q, &fc_k, &fc_v, &fc_o}) (*linear)->reset_parameters();
}

void GroupQueryAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "heed::GroupQueryAttention(emb_dim=" << options.emb_dim()
         << ", head_num=" << options.head_num() << ", group_num=" << options.group_num()
         << ", dropout=" << options.dropout();
  const auto print = [&](const char* name, const auto& option) {
    if (option) stream << ", " << name << "=" << *option;
  };
  print("head_dim", options.head_dim());
  if (!options.input_bias()) stream << ", input_bias=false";
  if (!options.output_bias()) stream << ", output_bias=false";
  print("scale", options.scale());
  if (options.causal()) stream << ", causal=true";
  print("window", options.window());
  if (!rotary.is_empty()) stream << ", rotary=" << *rotary;
  stream << ")";
}

detail::HeadProjections GroupQueryAttentionImpl::projections() const {
  return {"GroupQueryAttention",
          fc_q,
          fc_k,
          fc_v,
          fc_o,
          options.head_num(),
          rotary.is_empty() ? nullptr : rotary.get()};
}

AttendOptions GroupQueryAttentionImpl::attend_options(const std::optional<at::Tensor>& mask) const {
  return detail::call_options(mask, options.dropout(), is_training())
      .scale(options.scale())
      .causal(options.causal())
      .window(options.window());
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
