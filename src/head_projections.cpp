#include "head_projections.h"

#include <ATen/ops/linear.h>
#include <heed/multi_head_attention.h>

#include "checks.h"

namespace heed::detail {

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
  if (self) return;
  check_input(function, "key", key_input, key->weight);
  check_input(function, "value", value_input, value->weight);
  check_same_dim(function, "key", key_input, "query", query_input, 0);
  check_same_dim(function, "value", value_input, "key", key_input, 0);
  check_same_dim(function, "value", value_input, "key", key_input, 1);
}

at::Tensor HeadProjections::forward(const at::Tensor& query_input, const at::Tensor& key_input,
                                    const at::Tensor& value_input,
                                    const AttendOptions& options) const {
  check(query_input, key_input, value_input);
  return project(output, multi_head_attention(project(query, query_input), project(key, key_input),
                                              project(value, value_input), num_heads, options));
}

std::tuple<at::Tensor, at::Tensor> HeadProjections::forward_with_weights(
    const at::Tensor& query_input, const at::Tensor& key_input, const at::Tensor& value_input,
    const AttendOptions& options) const {
  check(query_input, key_input, value_input);
  auto [attended, weights] =
      multi_head_attention_with_weights(project(query, query_input), project(key, key_input),
                                        project(value, value_input), num_heads, options);
  return {project(output, attended), weights};
}

}  // namespace heed::detail
