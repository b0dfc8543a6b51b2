// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/norm_rows.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "core/direct.h"
#include "core/dtypes.h"
#include "core/plain.h"
#include "cpu/capability.h"
#include "cpu/layers/rms_norm.h"
#include "cpu/layers/tasks.h"

// Norms, in one pass over memory:
//
//   for some rows, which stay in the L1 cache, in parallel:      # cpu/isa/layers.cpp
//     sum = x + added                                            # add_and_normalize
//     y = the norm of each row
//
// Memory is the bound. docs/kernels.md, Layers.

namespace heed::detail {

namespace {

/// Normalizes rows [first, last) of x.
template <typename T>
void normalize(const LayerKernelsOf<T>& kernels, const Rows& x, const NormParameters& norm,
               const Rows& to) {
  const auto scale = norm_scale<T>(norm);
  if (!norm.centers) return kernels.rms_norm(x, scale, to);
  kernels.layer_norm(x, scale, norm.bias.defined() ? norm.bias.const_data_ptr() : nullptr, to);
}

/// Calls run(kernels, first, last) for rows of x, in parallel.
template <typename Run>
void for_rows(const at::Tensor& x, const Run& run) {
  const auto columns = x.size(-1);
  with_layer_kernels(x.scalar_type(), [&](const auto& kernels) {
    at::parallel_for(0, x.numel() / columns, rows_per_task(columns),
                     [&](int64_t first, int64_t last) { run(kernels, first, last); });
  });
}

bool is_plain_parameter(const at::Tensor& parameter, const at::Tensor& x) {
  return is_plain(parameter) && norm_takes(x.scalar_type(), parameter.scalar_type());
}

}  // namespace

bool kernels_normalize(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return has_kernels() && calls_reach_kernels() && is_plain(x) && x.dim() >= 1 && x.numel() > 0 &&
         weight.numel() == x.size(-1) && is_plain_parameter(weight, x) &&
         (!bias.defined() ||
          (is_plain_parameter(bias, x) && bias.scalar_type() == weight.scalar_type()));
}

at::Tensor normalize_rows(const at::Tensor& x, const NormParameters& norm) {
  auto result = empty_as(x);
  for_rows(x, [&](const auto& kernels, int64_t first, int64_t last) {
    normalize(kernels, rows_of(x, first, last), norm, rows_of(result, first, last));
  });
  return result;
}

SumAndNorm add_and_normalize(const at::Tensor& x, const at::Tensor& added,
                             const NormParameters& norm, bool keeps_sum) {
  const SumAndNorm result{keeps_sum ? empty_as(x) : at::Tensor(), empty_as(x)};
  const auto& sums = keeps_sum ? result.sum : result.normalized;  // rows are normalized in place
  constexpr int64_t kInCache = 1 << 12;                           // elements
  const auto at_once = std::max<int64_t>(1, kInCache / x.size(-1));
  for_rows(x, [&](const auto& kernels, int64_t first, int64_t last) {
    for (auto row = first; row < last; row += at_once) {
      const auto end = std::min(last, row + at_once);
      const auto sum = rows_of(sums, row, end);
      kernels.add(rows_of(x, row, end), rows_of(added, row, end), sum);
      normalize(kernels, sum, norm, rows_of(result.normalized, row, end));
    }
  });
  return result;
}

}  // namespace heed::detail
