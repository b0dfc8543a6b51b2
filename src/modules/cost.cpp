#include <heed/cost.h>

#include <algorithm>
#include <utility>

#include "core/attend_checks.h"
#include "core/checks.h"

namespace heed {

namespace {

/// What all the modules come down to.
struct Shape {
  int64_t batch, query_length, key_length;
  int64_t heads, groups, head_dim, value_head_dim;
  bool output_projection;
  double dropout;  // of this call: 0 in eval mode
};

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

AttentionCost make_cost(const torch::nn::Module& module, const Shape& shape, int64_t element_size,
                        int64_t projection_macs) {
  const auto [batch, query_length, key_length, heads, groups, head_dim, value_head_dim,
              output_projection, dropout] = shape;
  for (const auto& [name, size] :
       {std::pair{"batch", batch}, {"query_length", query_length}, {"key_length", key_length}}) {
    HEED_CHECK(size >= 0, "attention_cost: {} ({}) must be at least 0", name, size);
  }
  const auto queries = batch * query_length * heads;
  const auto keys = batch * key_length * groups;
  const auto weights = queries * key_length;

  AttentionCost cost;
  cost.parameters = parameter_count(module);
  cost.projection_macs = projection_macs;
  cost.attention_macs = weights * (head_dim + value_head_dim);
  cost.kv_cache_bytes = keys * (head_dim + value_head_dim) * element_size;
  const auto query_bytes = queries * head_dim * element_size;
  // Without an output projection the attended values are the module's output.
  const auto attended_bytes = output_projection ? queries * value_head_dim * element_size : 0;
  const auto projected_bytes = query_bytes + cost.kv_cache_bytes + attended_bytes;
  // A query's largest score and sum, at least float32. LibTorch's kernel keeps them as one number.
  cost.fused_activation_bytes = projected_bytes + 2 * queries * std::max<int64_t>(element_size, 4);
  // Softmax's result; with dropout its factors and the product too.
  const auto kept_weights = dropout > 0.0 ? 3 * weights : weights;
  cost.unfused_activation_bytes = projected_bytes + kept_weights * element_size;
  return cost;
}

double active_dropout(const torch::nn::Module& module, double dropout) {
  return module.is_training() ? dropout : 0.0;
}

/// Of modules whose sizes are those of their weights.
AttentionCost heads_cost(const torch::nn::Module& module, const torch::nn::Linear& query,
                         const torch::nn::Linear& key, const torch::nn::Linear& value,
                         const torch::nn::Linear& output, int64_t heads, double dropout,
                         int64_t batch, int64_t query_length, int64_t key_length) {
  const auto head_dim = query->weight.size(0) / heads;
  const auto groups = key->weight.size(0) / head_dim;
  const Shape shape = {batch,
                       query_length,
                       key_length,
                       heads,
                       groups,
                       head_dim,
                       value->weight.size(0) / groups,
                       true,
                       active_dropout(module, dropout)};
  const auto macs = batch * (query_length * (query->weight.numel() + output->weight.numel()) +
                             key_length * (key->weight.numel() + value->weight.numel()));
  return make_cost(module, shape, query->weight.element_size(), macs);
}

AttentionCost single_head_cost(const torch::nn::Module& module, const at::Tensor& weight,
                               const AttentionOptions& options, int64_t batch, int64_t length) {
  const auto width = options.emb_dim();
  const Shape shape = {
      batch, length, length, 1, 1, width, width, false, active_dropout(module, options.dropout())};
  return make_cost(module, shape, weight.element_size(), batch * length * 3 * width * width);
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
  return heads_cost(module, module.fc_q, module.fc_k, module.fc_v, module.fc_out,
                    module.options.head_nums(), module.options.dropout(), batch, query_length,
                    key_length.value_or(query_length));
}

AttentionCost attention_cost(const GroupQueryAttentionImpl& module, int64_t batch,
                             int64_t query_length, std::optional<int64_t> key_length) {
  return heads_cost(module, module.fc_q, module.fc_k, module.fc_v, module.fc_o,
                    module.options.head_num(), module.options.dropout(), batch, query_length,
                    key_length.value_or(query_length));
}

AttentionCost attention_cost(const SelfAttentionImpl& module, int64_t batch, int64_t query_length,
                             std::optional<int64_t> key_length) {
  const auto heads = module.options.heads();
  const auto head_dim = module.options.embed_size() / heads;
  const auto keys = key_length.value_or(query_length);
  const Shape shape = {batch,    query_length, keys, heads,          heads,
                       head_dim, head_dim,     true, /*dropout=*/0.0};
  // Every head goes through the same D x D projection.
  const auto macs =
      batch *
      (query_length * (module.queries->weight.numel() * heads + module.fc_out->weight.numel()) +
       keys * heads * (module.keys->weight.numel() + module.values->weight.numel()));
  return make_cost(module, shape, module.queries->weight.element_size(), macs);
}

AttentionCost attention_cost(const ResidualAttentionImpl& module, int64_t batch,
                             int64_t query_length, std::optional<int64_t> key_length) {
  auto cost = attention_cost(*module.attention, batch, query_length, key_length);
  cost.parameters = parameter_count(module);
  return cost;
}

AttentionCost attention_cost(const LatentAttentionImpl& module, int64_t batch, int64_t length) {
  const auto& options = module.options;
  const auto heads = options.head_num();
  const auto head_dim = options.plain_head_dim() + options.rotary_head_dim();
  const Shape shape = {batch,
                       length,
                       length,
                       heads,
                       heads,
                       head_dim,
                       options.value_head_dim(),
                       true,
                       active_dropout(module, options.dropout())};
  int64_t weights = 0;
  for (const auto* linear : {&module.fc_q, &module.fc_q_down, &module.fc_q_up, &module.fc_kv_down,
                             &module.fc_kv_up, &module.fc_o}) {
    if (*linear) weights += (*linear)->weight.numel();
  }
  const auto& down = module.fc_kv_down->weight;
  auto cost = make_cost(module, shape, down.element_size(), batch * length * weights);
  // The latent vectors before and after their norms; keys before the rotated part joins them.
  const auto latent = 2 * (options.key_rank() + options.query_rank().value_or(0));
  const auto extra =
      batch * length * (latent + heads * options.plain_head_dim()) * down.element_size();
  cost.fused_activation_bytes += extra;
  cost.unfused_activation_bytes += extra;
  cost.kv_cache_bytes = batch * length * down.size(0) * down.element_size();
  return cost;
}

AttentionCost attention_cost(const DifferentialAttentionImpl& module, int64_t batch,
                             int64_t length) {
  const auto& options = module.options;
  const auto heads = 2 * options.head_num(), width = options.emb_dim();
  auto cost = heads_cost(module, module.fc_q, module.fc_k, module.fc_v, module.fc_out, heads,
                         options.dropout(), batch, length, length);
  // A pair of heads shares values of twice the width; their difference is kept, and its norm.
  cost.attention_macs += batch * length * length * width;
  const auto extra = 3 * batch * length * width * module.fc_q->weight.element_size();
  cost.fused_activation_bytes += extra;
  cost.unfused_activation_bytes += extra;
  return cost;
}

AttentionCost attention_cost(const ScaledDotProductAttentionImpl& module, const at::Tensor& query,
                             const at::Tensor& key, const at::Tensor& value) {
  detail::check_tensors("attention_cost", query, key, value, /*rank=*/4);
  const Shape shape = {
      query.size(0), query.size(2), key.size(2),
      query.size(1), key.size(1),   query.size(3),
      value.size(3), false,         active_dropout(module, module.options.dropout())};
  auto cost = make_cost(module, shape, query.element_size(), /*projection_macs=*/0);
  const auto inputs = static_cast<int64_t>(query.nbytes()) + cost.kv_cache_bytes;
  cost.fused_activation_bytes -= inputs;
  cost.unfused_activation_bytes -= inputs;
  return cost;
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
