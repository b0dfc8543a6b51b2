// SPDX-License-Identifier: BSD-3-Clause
#include <heed/multi_head_attention.h>

#include "core/checks.h"
#include "modules/heads.h"

namespace heed {

namespace {

void check_packed(const char* function, const char* name, const at::Tensor& tensor, int64_t heads,
                  const char* heads_name) {
  HEED_CHECK(tensor.defined(), "{}: {} must be defined", function, name);
  detail::check_rank(function, name, tensor, 3);
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

}  // namespace heed
