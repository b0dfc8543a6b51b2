// SPDX-License-Identifier: BSD-3-Clause
#include <heed/alibi.h>
#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>
#include <torch/nn/init.h>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "modules/attentions/given_inputs.h"
#include "modules/attentions/head_names.h"
#include "modules/attentions/head_projections.h"
#include "modules/caches/caches.h"
#include "modules/count.h"
#include "modules/layers/parameters.h"
#include "modules/print.h"

namespace heed {

namespace {

using detail::Count;

NormOptions norm_options(const QkNormOptions& norm, int64_t head_dim, int64_t heads) {
  return NormOptions(norm.across_heads() ? (Count(heads) * head_dim).value() : head_dim)
      .kind(norm.kind())
      .eps(norm.eps())
      .unit_offset(norm.unit_offset());
}

/// Checks all options, and returns the sizes of the heads.
template <typename Impl, typename Options>
HeadSizes checked_sizes(const Options& options) {
  using Name = detail::HeadNames<Impl>;
  const auto width = options.emb_dim(), heads = Name::heads(options),
             groups = Name::groups(options);
  detail::check_positive(Name::kModule, "emb_dim", width);
  detail::check_positive(Name::kModule, Name::kHeads, heads);
  if (!options.head_dim()) {
    detail::check_divisible(Name::kModule, "emb_dim", width, Name::kHeads, heads);
  }
  detail::check_divisible(Name::kModule, Name::kHeads, heads, "group_num", groups);
  const auto head_dim = options.head_dim().value_or(width / heads);
  const auto value_head_dim = options.value_head_dim().value_or(head_dim);
  detail::check_positive(Name::kModule, "key_emb_dim", options.key_emb_dim().value_or(width));
  detail::check_positive(Name::kModule, "value_emb_dim", options.value_emb_dim().value_or(width));
  detail::check_positive(Name::kModule, "head_dim", head_dim);
  detail::check_positive(Name::kModule, "value_head_dim", value_head_dim);
  detail::check_score_options(Name::kModule, AttendOptions()
                                                 .dropout(options.dropout())
                                                 .scale(options.scale())
                                                 .window(options.window())
                                                 .left_window(options.left_window())
                                                 .right_window(options.right_window())
                                                 .softcap(options.softcap()));
  return {heads, groups, head_dim, value_head_dim};
}

}  // namespace

template <typename Derived, typename Options>
void MultiHeadAttentionImplBase<Derived, Options>::reset() {
  using Name = detail::HeadNames<Derived>;
  head_sizes = checked_sizes<Derived>(options);
  const auto& [heads, groups, head_dim, value_head_dim] = head_sizes;
  rotary = detail::make_rotary(Name::kModule, options.rotary(), head_dim);
  if (const auto& norm = options.qk_norm()) {
    q_norm = this->register_module("q_norm", Norm(norm_options(*norm, head_dim, heads)));
    k_norm = this->register_module("k_norm", Norm(norm_options(*norm, head_dim, groups)));
  }
  if (options.sinks()) {
    sinks = this->register_parameter("sinks", detail::empty_parameter({heads}));
    if (!detail::UninitializedParameters::are_made()) torch::nn::init::zeros_(sinks);
  }
  if (options.alibi()) {
    alibi_slopes = this->register_buffer("alibi_slopes", heed::alibi_slopes(heads));
  }
  const auto linear = [&](const char* name, Count in, Count out, bool bias) {
    return this->register_module(name, detail::make_linear(in.value(), out.value(), bias));
  };
  const bool bias = options.input_bias();
  const auto width = options.emb_dim();
  fc_q = linear("fc_q", width, Count(heads) * head_dim, bias);
  fc_k = linear("fc_k", options.key_emb_dim().value_or(width), Count(groups) * head_dim,
                bias && options.key_bias());
  fc_v =
      linear("fc_v", options.value_emb_dim().value_or(width), Count(groups) * value_head_dim, bias);
  Name::output(static_cast<Derived&>(*this)) =
      linear(Name::kOutput, Count(heads) * value_head_dim, width, options.output_bias());
}

template <typename Derived, typename Options>
void MultiHeadAttentionImplBase<Derived, Options>::reset_parameters() {
  auto& output = detail::HeadNames<Derived>::output(static_cast<Derived&>(*this));
  for (auto* linear : {&fc_q, &fc_k, &fc_v, &output}) detail::reset_parameters(*linear);
  if (q_norm) q_norm->reset_parameters();
  if (k_norm) k_norm->reset_parameters();
  if (sinks.defined()) torch::nn::init::zeros_(sinks);
}

template <typename Derived, typename Options>
void MultiHeadAttentionImplBase<Derived, Options>::pretty_print(std::ostream& stream) const {
  using Name = detail::HeadNames<Derived>;
  detail::ModulePrinter printer(stream, Name::kModule);
  printer.show("emb_dim", options.emb_dim()).show(Name::kHeads, Name::heads(options));
  if (Name::kHasGroups) printer.show("group_num", Name::groups(options));
  printer.show("dropout", options.dropout())
      .option("key_emb_dim", options.key_emb_dim())
      .option("value_emb_dim", options.value_emb_dim())
      .option("head_dim", options.head_dim())
      .option("value_head_dim", options.value_head_dim())
      .option("input_bias", options.input_bias(), true)
      .option("key_bias", options.key_bias(), true)
      .option("output_bias", options.output_bias(), true)
      .option("scale", options.scale())
      .option("causal", options.causal(), false)
      .option("top_left", options.top_left(), false)
      .option("window", options.window())
      .option("left_window", options.left_window())
      .option("right_window", options.right_window())
      .option("softcap", options.softcap());
  if (const auto& norm = options.qk_norm()) {
    printer.show("qk_norm", to_string(norm->kind()))
        .option("qk_norm_eps", norm->eps(), QkNormOptions().eps())
        .option("qk_norm_after_rotary", norm->after_rotary(), false)
        .option("qk_norm_across_heads", norm->across_heads(), false)
        .option("qk_norm_unit_offset", norm->unit_offset(), false);
  }
  printer.option("alibi", options.alibi(), false).option("sinks", options.sinks(), false);
  if (rotary) printer.show("rotary", *rotary);
}

template <typename Derived, typename Options>
detail::HeadProjections MultiHeadAttentionImplBase<Derived, Options>::projections() const {
  const auto& norm = options.qk_norm();
  return {detail::HeadNames<Derived>::kModule,
          fc_q,
          fc_k,
          fc_v,
          detail::HeadNames<Derived>::output(static_cast<const Derived&>(*this)),
          head_sizes,
          {rotary, q_norm, k_norm, norm && norm->after_rotary()},
          options.key_emb_dim() ? "key_emb_dim" : "emb_dim",
          options.value_emb_dim() ? "value_emb_dim" : "emb_dim",
          shared_sequence.get()};
}

template <typename Derived, typename Options>
AttendOptions MultiHeadAttentionImplBase<Derived, Options>::attend_options(
    const AttentionInputs& inputs) const {
  auto call = detail::given_options(inputs)
                  .dropout(this->is_training() ? options.dropout() : 0.0)
                  .scale(options.scale())
                  .causal(options.causal())
                  .top_left(options.top_left())
                  .window(options.window())
                  .left_window(options.left_window())
                  .right_window(options.right_window())
                  .softcap(options.softcap());
  if (alibi_slopes.defined()) call.alibi_slopes(alibi_slopes);
  if (sinks.defined()) call.sinks(sinks);
  return call;
}

template <typename Derived, typename Options>
at::Tensor MultiHeadAttentionImplBase<Derived, Options>::forward(const at::Tensor& x,
                                                                 const AttentionInputs& inputs) {
  return projections().forward(detail::Sources::self(x), attend_options(inputs), inputs);
}

template <typename Derived, typename Options>
at::Tensor MultiHeadAttentionImplBase<Derived, Options>::forward(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& bias) {
  return projections().forward(detail::Sources::of(query, key, value),
                               attend_options(AttentionInputs(mask).bias(bias)));
}

template <typename Derived, typename Options>
ProjectedMemory MultiHeadAttentionImplBase<Derived, Options>::project_memory(
    const at::Tensor& key, const at::Tensor& value) const {
  return projections().project_memory(key, value);
}

template <typename Derived, typename Options>
at::Tensor MultiHeadAttentionImplBase<Derived, Options>::forward(
    const at::Tensor& query, const ProjectedMemory& memory, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& bias) {
  const auto own = projections();
  const auto call = attend_options(AttentionInputs(mask).bias(bias));
  return own.attended(own.heads(query, memory, call), call);
}

template <typename Derived, typename Options>
at::Tensor MultiHeadAttentionImplBase<Derived, Options>::forward_cached(
    const at::Tensor& x, KVCache& cache, at::IntArrayRef counts,
    const AttentionInputs& inputs) const {
  detail::TokensOfBatch tokens(detail::HeadNames<Derived>::kModule, cache, counts);
  return projections().forward_appended(x, tokens, attend_options(inputs), inputs);
}

template <typename Derived, typename Options>
at::Tensor MultiHeadAttentionImplBase<Derived, Options>::forward_cached(
    const at::Tensor& x, PagedStep& step, int64_t layer, const AttentionInputs& inputs) const {
  detail::TokensOfStep tokens(detail::HeadNames<Derived>::kModule, x, step, layer);
  return projections().forward_appended(x, tokens, attend_options(inputs), inputs);
}

template <typename Derived, typename Options>
at::Tensor MultiHeadAttentionImplBase<Derived, Options>::forward_cached(
    const at::Tensor& x, PagedStep& step, const ProjectedMemory& memory,
    const std::optional<at::Tensor>& mask) const {
  constexpr auto kModule = detail::HeadNames<Derived>::kModule;
  detail::check_step_tokens(kModule, "x", x, step);
  const auto own = projections();
  const auto call = attend_options(AttentionInputs(mask));
  own.check_step(x, memory, call);
  return own.attended_rows(x, memory, step.rows_of(kModule, memory.key.size(0)), call);
}

template <typename Derived, typename Options>
KVCache MultiHeadAttentionImplBase<Derived, Options>::make_cache(
    int64_t batch, int64_t capacity, const CacheOptions& cache_options) const {
  return detail::make_cache(head_sizes, detail::causal_window(options), batch, capacity,
                            cache_options, fc_k->weight);
}

template <typename Derived, typename Options>
PagedKVCache MultiHeadAttentionImplBase<Derived, Options>::make_paged_cache(
    int64_t pages, const PagedCacheOptions& cache_options) const {
  return detail::make_paged_cache(head_sizes, detail::causal_window(options), pages, cache_options,
                                  fc_k->weight);
}

template <typename Derived, typename Options>
std::tuple<at::Tensor, at::Tensor>
MultiHeadAttentionImplBase<Derived, Options>::forward_with_weights(
    const at::Tensor& x, const AttentionInputs& inputs) const {
  return projections().forward_with_weights(detail::Sources::self(x), attend_options(inputs),
                                            inputs);
}

template <typename Derived, typename Options>
std::tuple<at::Tensor, at::Tensor>
MultiHeadAttentionImplBase<Derived, Options>::forward_with_weights(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const std::optional<at::Tensor>& mask, const std::optional<at::Tensor>& bias) const {
  return projections().forward_with_weights(detail::Sources::of(query, key, value),
                                            attend_options(AttentionInputs(mask).bias(bias)));
}

template <typename Derived, typename Options>
std::tuple<at::Tensor, at::Tensor>
MultiHeadAttentionImplBase<Derived, Options>::forward_with_weights(
    const at::Tensor& query, const ProjectedMemory& memory, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& bias) const {
  const auto own = projections();
  const auto call = attend_options(AttentionInputs(mask).bias(bias));
  return own.attended_with_weights(own.heads(query, memory, call), call);
}

template <typename Derived, typename Options>
void MultiHeadAttentionImplBase<Derived, Options>::to(torch::Device device, torch::Dtype dtype,
                                                      bool non_blocking) {
  detail::keep_values(alibi_slopes, [&] { Cloneable<Derived>::to(device, dtype, non_blocking); });
}

template <typename Derived, typename Options>
void MultiHeadAttentionImplBase<Derived, Options>::to(torch::Dtype dtype, bool non_blocking) {
  detail::keep_values(alibi_slopes, [&] { Cloneable<Derived>::to(dtype, non_blocking); });
}

template class MultiHeadAttentionImplBase<MultiHeadAttentionImpl, MultiHeadAttentionOptions>;
template class MultiHeadAttentionImplBase<GroupQueryAttentionImpl, GroupQueryAttentionOptions>;

MultiHeadAttentionImpl::MultiHeadAttentionImpl(const MultiHeadAttentionOptions& options)
    : MultiHeadAttentionImplBase(options) {
  reset();
}

MultiHeadAttentionImpl::MultiHeadAttentionImpl(int64_t emb_dim, int64_t head_nums, double dropout)
    : MultiHeadAttentionImpl(MultiHeadAttentionOptions(emb_dim, head_nums).dropout(dropout)) {}

GroupQueryAttentionImpl::GroupQueryAttentionImpl(const GroupQueryAttentionOptions& options)
    : MultiHeadAttentionImplBase(options) {
  reset();
}

GroupQueryAttentionImpl::GroupQueryAttentionImpl(int64_t emb_dim, int64_t head_num,
                                                 int64_t group_num)
    : GroupQueryAttentionImpl(GroupQueryAttentionOptions(emb_dim, head_num, group_num)) {}

}  // namespace heed
