// SPDX-License-Identifier: BSD-3-Clause
#include "modules/module_checks.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/aminmax.h>

#include "core/checks.h"

namespace heed::detail {

void check_input(const char* function, const char* name, const at::Tensor& input,
                 const at::Tensor& weight, const char* dim_name) {
  check_defined(function, name, input);
  check_rank(function, name, input, 3);
  check_rows(function, name, input, weight, dim_name);
}

void check_rows(const char* function, const char* name, const at::Tensor& input,
                const at::Tensor& weight, const char* dim_name) {
  check_defined(function, name, input);
  const auto last = input.dim() - 1;
  HEED_CHECK(last >= 0, "{}: {} rank (0) must be at least 1", function, name);
  HEED_CHECK(input.size(last) == weight.size(1), "{}: {} dim {} ({}) must equal {} ({}); {} {}",
             function, name, last, input.size(last), dim_name, weight.size(1), name, shape(input));
  check_module_dtype(function, name, input, weight);
}

void check_module_dtype(const char* function, const char* name, const at::Tensor& input,
                        const at::Tensor& weight) {
  check_same_device(function, name, input, "weight", weight);
  check_floating(function, name, input);
  if (!at::autocast::is_autocast_enabled(input.device().type())) {
    check_same_dtype(function, name, input, "weight", weight);
  }
}

void check_indices(const char* function, const char* name, const at::Tensor& indices,
                   const at::Tensor& embeddings, const char* limit_name, int64_t limit) {
  check_defined(function, name, indices);
  check_rank(function, name, indices, 2);
  HEED_CHECK(indices.scalar_type() == at::kLong, "{}: {} dtype ({}) must be Long", function, name,
             c10::toString(indices.scalar_type()));
  check_same_device(function, name, indices, "weight", embeddings);
  check_range(function, name, indices, limit_name, limit);
}

void check_range(const char* function, const char* name, const at::Tensor& numbers,
                 const char* limit_name, int64_t limit) {
  if (!numbers.is_cpu() || numbers.numel() == 0) return;
  const auto [least, most] = at::aminmax(numbers);
  HEED_CHECK(least.item<int64_t>() >= 0 && most.item<int64_t>() < limit,
             "{}: {} ({} to {}) must be at least 0 and below {} ({})", function, name,
             least.item<int64_t>(), most.item<int64_t>(), limit_name, limit);
}

void check_positions(const char* function, const at::Tensor& positions) {
  HEED_CHECK(positions.defined(), "{}: positions must be defined", function);
  check_integer(function, "positions", positions);
  HEED_CHECK(positions.dim() == 1 || positions.dim() == 2,
             "{}: positions rank ({}) must equal 1 or 2; positions {}", function, positions.dim(),
             shape(positions));
}

void check_sources(const char* function, const at::Tensor& query, const at::Tensor& key,
                   const at::Tensor& value) {
  check_same_dim(function, "key", key, "query", query, 0);
  check_same_dim(function, "value", value, "key", key, 0);
  check_same_dim(function, "value", value, "key", key, 1);
}

}  // namespace heed::detail
