#include <heed/cost.h>

#include <algorithm>
#include <utility>

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
  bool output_projection;
  double dropout;  // 0 in eval mode
};

/// Partial costs; make_cost adds them up.
struct Figures {
  Count projection_macs, attention_macs;
  Count projected_bytes;  // query, key, value and attention's output, kept for gradients
  Count statistics_bytes, weights_bytes, kv_cache_bytes;
};

void check_sizes(const Shape& shape) {
  for (const auto& [name, size] : {std::pair{"batch", shape.batch.value()},
                                   {"query_length", shape.query_length.value()},
                                   {"key_length", shape.key_length.value()}}) {
    detail::check_not_negative("attention_cost", name, size);
  }
}

Figures figures_of(const Shape& shape, int64_t element_size, Count projection_macs) {
  check_sizes(shape);
  const Count head_dim = shape.sizes.head_dim, value_head_dim = shape.sizes.value_head_dim;
  const auto queries = shape.batch * shape.query_length * shape.sizes.heads;
  const auto keys = shape.batch * shape.key_length * shape.sizes.groups;
  const auto weights = queries * shape.key_length;
  const auto kv_cache_bytes = keys * (head_dim + value_head_dim) * element_size;
  // Without an output projection, attention's output is the module's output.
  const auto attended_bytes =
      shape.output_projection ? queries * value_head_dim * element_size : Count(0);
  // The result of softmax is kept, and with dropout its factors and the product too.
  const auto kept_weights = weights * (shape.dropout > 0.0 ? 3 : 1);
  return {projection_macs, weights * (head_dim + value_head_dim),
          queries * head_dim * element_size + kv_cache_bytes + attended_bytes,
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
  cost.fused_activation_bytes = (figures.projected_bytes + figures.statistics_bytes).value();
  cost.unfused_activation_bytes = (figures.projected_bytes + figures.weights_bytes).value();
  cost.kv_cache_bytes = figures.kv_cache_bytes.value();
  return cost;
}

double active_dropout(const torch::nn::Module& module, double dropout) {
  return module.is_training() ? dropout : 0.0;
}

/// The Linears of a multi-head module, by their use.
struct Projections {
  const torch::nn::Linear &query, &key, &value, &output;
};

/// The partial costs of a multi-head module.
Figures heads_figures(const torch::nn::Module& module, const Projections& linears,
                      const HeadSizes& sizes, double dropout, Count batch, Count query_length,
                      Count key_length) {
  const auto& query = linears.query->weight;
  const auto& key = linears.key->weight;
  const auto& value = linears.value->weight;
  const Shape shape = {batch,
                       query_length,
                       key_length,
                       sizes,
                       /*output_projection=*/true,
                       active_dropout(module, dropout)};
  const auto macs = batch * (query_length * (query.numel() + linears.output->weight.numel()) +
                             key_length * (key.numel() + value.numel()));
  return figures_of(shape, query.element_size(), macs);
}

AttentionCost single_head_cost(const torch::nn::Module& module, const at::Tensor& weight,
                               const AttentionOptions& options, Count batch, Count length) {
  const auto width = options.emb_dim();
  const Shape shape = {batch,
                       length,
                       length,
                       {1, 1, width, width},
                       /*output_projection=*/false,
                       active_dropout(module, options.dropout())};
  const auto macs = batch * length * 3 * width * width;
  return make_cost(module, figures_of(shape, weight.element_size(), macs));
}

}  // namespace

AttentionCost attention_cost(const AttentionImpl& module, int64_t batch, int64_t length) {
  return single_head_cost(module, module.fc_q->weight, module.options, batch, length);
}

AttentionCost attention_cost(const AttentionV1Impl& module, int64_t batch, int64_t length) {
  return single_head_cost(module, module.qkv->weight, module.options, batch, length);
}

AttentionCost attention_cost(const MultiHeadAttentionImpl& module, int64_t batch,
                             int64_t query_length, std::optional<int64_t> key_length) {
  return make_cost(module,
                   heads_figures(module, {module.fc_q, module.fc_k, module.fc_v, module.fc_out},
                                 module.head_sizes, module.options.dropout(), batch, query_length,
                                 key_length.value_or(query_length)));
}

AttentionCost attention_cost(const GroupQueryAttentionImpl& module, int64_t batch,
                             int64_t query_length, std::optional<int64_t> key_length) {
  return make_cost(module,
                   heads_figures(module, {module.fc_q, module.fc_k, module.fc_v, module.fc_o},
                                 module.head_sizes, module.options.dropout(), batch, query_length,
                                 key_length.value_or(query_length)));
}

AttentionCost attention_cost(const SelfAttentionImpl& module, int64_t batch, int64_t query_length,
                             std::optional<int64_t> key_length) {
  const auto heads = module.head_sizes.heads;
  const Count keys = key_length.value_or(query_length);
  const Shape shape = {
      batch, query_length, keys, module.head_sizes, /*output_projection=*/true, /*dropout=*/0.0};
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
  const Shape shape = {batch,
                       length,
                       length,
                       module.head_sizes,
                       /*output_projection=*/true,
                       active_dropout(module, options.dropout())};
  const auto weights = detail::weight_count({&module.fc_q, &module.fc_q_down, &module.fc_q_up,
                                             &module.fc_kv_down, &module.fc_kv_up, &module.fc_o});
  const auto& down = module.fc_kv_down->weight;
  const auto tokens = shape.batch * shape.query_length;
  auto figures = figures_of(shape, down.element_size(), tokens * weights);
  // Also kept: the latent vectors before and after their norms, and the keys without their rotated
  // part.
  const auto latent = 2 * (options.key_rank() + options.query_rank().value_or(0));
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
  auto figures = heads_figures(module, {module.fc_q, module.fc_k, module.fc_v, module.fc_out},
                               halves, options.dropout(), batch, length, length);
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
                       /*output_projection=*/false,
                       active_dropout(module, module.options.dropout())};
  auto figures = figures_of(shape, query.element_size(), /*projection_macs=*/0);
  figures.projected_bytes = 0;  // query, key and value are the inputs
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
