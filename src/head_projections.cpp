#include "head_projections.h"

#include <ATen/ops/linear.h>
#include <heed/multi_head_attention.h>

#include "checks.h"
#include "nested.h"

namespace heed::detail {

namespace {

bool is_nested(const at::Tensor& tensor) { return tensor.defined() && tensor.is_nested(); }

}  // namespace

at::Tensor project(const torch::nn::Linear& linear, const at::Tensor& input) {
  return at::linear(input, linear->weight, linear->bias);
}

AttendOptions call_options(const std::optional<at::Tensor>& mask, double dropout, bool training) {
  return AttendOptions().mask(mask).dropout(training ? dropout : 0.0);
}

void HeadProjections::check(const at::Tensor& query_input, const at::Tensor& key_input,
                            const at::Tensor& value_input) const {
  const bool self = query_input.is_same(key_input) && key_input.is_same(value_input);
  check_input(function, self ? "x" : "query", query_input, query->weight);
  check_input(function, self ? "x" : "key", key_input, key->weight, key_dim_name);
  check_input(function, self ? "x" : "value", value_input, value->weight, value_dim_name);
  check_sources(function, query_input, key_input, value_input);
}

at::Tensor HeadProjections::forward(const at::Tensor& query_input, const at::Tensor& key_input,
                                    const at::Tensor& value_input,
                                    const AttendOptions& options) const {
  if (is_nested(query_input)) return forward_nested(query_input, key_input, value_input, options);
  check(query_input, key_input, value_input);
  return project(output, multi_head_attention(project(query, query_input), project(key, key_input),
                                              project(value, value_input), num_heads, options));
}

std::tuple<at::Tensor, at::Tensor> HeadProjections::forward_with_weights(
    const at::Tensor& query_input, const at::Tensor& key_input, const at::Tensor& value_input,
    const AttendOptions& options) const {
  HEED_CHECK(!is_nested(query_input),
             "{}: query must not be nested where weights are asked for: their shapes would differ",
             function);
  check(query_input, key_input, value_input);
  auto [attended, weights] =
      multi_head_attention_with_weights(project(query, query_input), project(key, key_input),
                                        project(value, value_input), num_heads, options);
  return {project(output, attended), weights};
}

at::Tensor HeadProjections::forward_nested(const at::Tensor& query_input,
                                           const at::Tensor& key_input,
                                           const at::Tensor& value_input,
                                           const AttendOptions& options) const {
  const auto queries = pack(function, "query", query_input);
  const auto keys = key_input.is_same(query_input) ? queries : pack(function, "key", key_input);
  const auto values = value_input.is_same(key_input) ? keys : pack(function, "value", value_input);
  check(queries.rows, keys.rows, values.rows);
  const auto split = [](const at::Tensor& rows, int64_t heads) {
    return rows.squeeze(0).unflatten(1, {heads, rows.size(2) / heads});
  };
  const auto projected_query = split(project(query, queries.rows), num_heads);  // [T, H, D]
  const auto groups = key->weight.size(0) / projected_query.size(2);
  const auto attended = attend_varlen(projected_query, split(project(key, keys.rows), groups),
                                      split(project(value, values.rows), groups), queries.offsets,
                                      keys.offsets, options);
  return unpack({project(output, attended.flatten(1).unsqueeze(0)), queries.offsets});
}

}  // namespace heed::detail
