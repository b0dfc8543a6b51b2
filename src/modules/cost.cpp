// SPDX-License-Identifier: BSD-3-Clause
#include <heed/cost.h>

#include <algorithm>

#include "core/attend_checks.h"
#include "core/checks.h"
#include "modules/count.h"

namespace heed {

namespace {

using detail::Count;

/// Sizes from which the cost of any module's attention follows.
struct Shape {
  Count batch, query_length, key_length;
  HeadSizes sizes;
  double dropout = 0.0;  // 0 in eval mode
};

/// Partial costs; make_cost adds them up.
struct Figures {
  Count projection_macs, attention_macs;
  Count projected_bytes;  // query, key and value, kept for gradients
  Count attended_bytes;   // attention's output, kept for gradients of the output projection
  Count statistics_bytes, weights_bytes, kv_cache_bytes;
};

Figures figures_of(const Shape& shape, int64_t element_size, Count projection_macs) {
  detail::check_not_negative("attention_cost", "batch", shape.batch.value());
  detail::check_not_negative("attention_cost", "query_length", shape.query_length.value());
  detail::check_not_negative("attention_cost", "key_length", shape.key_length.value());
  const Count head_dim = shape.sizes.head_dim, value_head_dim = shape.sizes.value_head_dim;
  const auto queries = shape.batch * shape.query_length * shape.sizes.heads;
  const auto keys = shape.batch * shape.key_length * shape.sizes.groups;
  const auto weights = queries * shape.key_length;
  const auto kv_cache_bytes = keys * (head_dim + value_head_dim) * element_size;
  // The result of softmax is kept, and with dropout its factors and the product too.
  const auto kept_weights = weights * (shape.dropout > 0.0 ? 3 : 1);
  return {projection_macs, weights * (head_dim + value_head_dim),
          queries * head_dim * element_size + kv_cache_bytes,
          queries * value_head_dim * element_size,
          // Each query's largest score and sum, in float32 or wider. LibTorch's kernel keeps one
          // number instead.
          queries * 2 * std::max<int64_t>(element_size, 4), kept_weights * element_size,
          kv_cache_bytes};
}

AttentionCost make_cost(const torch::nn::Module& module, const Figures& figures) {
  AttentionCost cost;
  cost.parameters = detail::parameter_count(module);
  cost.projection_macs = figures.projection_macs.value();
  cost.attention_macs = figures.attention_macs.value();
  const auto kept = figures.projected_bytes + figures.attended_bytes;
  cost.fused_activation_bytes = (kept + figures.statistics_bytes).value();
  cost.unfused_activation_bytes = (kept + figures.weights_bytes).value();
  cost.kv_cache_bytes = figures.kv_cache_bytes.value();
  return cost;
}

template <typename Module>
double active_dropout(const Module& module) {
  return module.is_training() ? module.options.dropout() : 0.0;
}

/// The partial costs of a multi-head module, whose last Linear is `output`.
template <typename Module>
Figures heads_figures(const Module& module, const torch::nn::Linear& output, const HeadSizes& sizes,
                      Count batch, Count query_length, Count key_length) {
  const auto& query = module.fc_q->weight;
  const Shape shape = {batch, query_length, key_length, sizes, active_dropout(module)};
  const auto macs = batch * (query_length * (query.numel() + output->weight.numel()) +
                             key_length * detail::weight_count({&module.fc_k, &module.fc_v}));
  return figures_of(shape, query.element_size(), macs);
}

template <typename Module>
AttentionCost multi_head_cost(const Module& module, const torch::nn::Linear& output, Count batch,
                              Count query_length, Count key_length) {
  return make_cost(
      module, heads_figures(module, output, module.head_sizes, batch, query_length, key_length));
}

template <typename Module>
AttentionCost single_head_cost(const Module& module, const torch::nn::Linear& projection,
                               Count batch, Count length) {
  const auto width = module.options.emb_dim();
  const Shape shape = {batch, length, length, {1, 1, width, width}, active_dropout(module)};
  const auto macs = batch * length * 3 * width * width;
  auto figures = figures_of(shape, projection->weight.element_size(), macs);
  figures.attended_bytes = 0;  // the module's own output
  return make_cost(module, figures);
}

}  // namespace

AttentionCost attention_cost(const AttentionImpl& module, int64_t batch, int64_t length) {
  return single_head_cost(module, module.fc_q, batch, length);
}

AttentionCost attention_cost(const AttentionV1Impl& module, int64_t batch, int64_t length) {
  return single_head_cost(module, module.qkv, batch, length);
}

AttentionCost attention_cost(const MultiHeadAttentionImpl& module, int64_t batch,
                             int64_t query_length, std::optional<int64_t> key_length) {
  return multi_head_cost(module, module.fc_out, batch, query_length,
                         key_length.value_or(query_length));
}

AttentionCost attention_cost(const GroupQueryAttentionImpl& module, int64_t batch,
                             int64_t query_length, std::optional<int64_t> key_length) {
  return multi_head_cost(module, module.fc_o, batch, query_length,
                         key_length.value_or(query_length));
}

AttentionCost attention_cost(const SelfAttentionImpl& module, int64_t batch, int64_t query_length,
                             std::optional<int64_t> key_length) {
  const auto heads = module.head_sizes.heads;
  const Count keys = key_length.value_or(query_length);
  const Shape shape = {batch, query_length, keys, module.head_sizes};
  // Every head goes through the same D x D projection.
  const auto of_query = module.queries->weight.numel() * heads + module.fc_out->weight.numel();
  const auto of_key = heads * (module.keys->weight.numel() + module.values->weight.numel());
  const auto macs = Count(batch) * (Count(query_length) * of_query + keys * of_key);
  return make_cost(module, figures_of(shape, module.queries->weight.element_size(), macs));
}

AttentionCost attention_cost(const ResidualAttentionImpl& module, int64_t batch,
                             int64_t query_length, std::optional<int64_t> key_length) {
  auto cost = attention_cost(*module.attention, batch, query_length, key_length);
  cost.parameters = detail::parameter_count(module);
  return cost;
}

AttentionCost attention_cost(const LatentAttentionImpl& module, int64_t batch, int64_t length) {
  const auto& options = module.options;
  const Shape shape = {batch, length, length, module.head_sizes, active_dropout(module)};
  const auto weights = detail::weight_count({&module.fc_q, &module.fc_q_down, &module.fc_q_up,
                                             &module.fc_kv_down, &module.fc_kv_up, &module.fc_o});
  const auto& down = module.fc_kv_down->weight;
  const auto tokens = shape.batch * shape.query_length;
  auto figures = figures_of(shape, down.element_size(), tokens * weights);
  // Also kept: the latent vectors before their norms, those of keys after it too, and the keys
  // without their rotated part.
  const auto latent = 2 * options.key_rank() + options.query_rank().value_or(0);
  figures.projected_bytes =
      figures.projected_bytes +
      tokens * (latent + module.head_sizes.heads * options.plain_head_dim()) * down.element_size();
  figures.kv_cache_bytes = tokens * down.size(0) * down.element_size();
  return make_cost(module, figures);
}

AttentionCost attention_cost(const DifferentialAttentionImpl& module, int64_t batch,
                             int64_t length) {
  const auto& options = module.options;
  const auto& pairs = module.head_sizes;
  const HeadSizes halves = {2 * pairs.heads, 2 * pairs.groups, pairs.head_dim / 2,
                            pairs.value_head_dim / 2};
  auto figures = heads_figures(module, module.fc_out, halves, batch, length, length);
  // A pair of heads shares values of width 2 D. The heads' difference and its norm are kept too.
  const auto elements = Count(batch) * length * options.emb_dim();
  figures.attention_macs = figures.attention_macs + elements * length;
  figures.projected_bytes =
      figures.projected_bytes + elements * 3 * module.fc_q->weight.element_size();
  return make_cost(module, figures);
}

AttentionCost attention_cost(const ScaledDotProductAttentionImpl& module, const at::Tensor& query,
                             const at::Tensor& key, const at::Tensor& value) {
  detail::check_tensors("attention_cost", query, key, value, /*rank=*/4);
  const Shape shape = {query.size(0),
                       query.size(2),
                       key.size(2),
                       {query.size(1), key.size(1), query.size(3), value.size(3)},
                       active_dropout(module)};
  auto figures = figures_of(shape, query.element_size(), /*projection_macs=*/0);
  figures.projected_bytes = figures.attended_bytes = 0;  // the inputs and the output
  return make_cost(module, figures);
}

std::ostream& operator<<(std::ostream& stream, const AttentionCost& cost) {
  const auto row = [&](const char* name, int64_t value) {
    stream << fmt::format("{:<30}{:>16}\n", name, value);
  };
  row("parameters", cost.parameters);
  row("projection multiply-adds", cost.projection_macs);
  row("attention multiply-adds", cost.attention_macs);
  row("activation bytes, fused", cost.fused_activation_bytes);
  row("activation bytes, unfused", cost.unfused_activation_bytes);
  row("key/value cache bytes", cost.kv_cache_bytes);
  return stream;
}

}  // namespace heed
