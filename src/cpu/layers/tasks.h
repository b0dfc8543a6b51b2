// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "core/ceil_div.h"
#include "cpu/capability.h"
#include "cpu/tensor_rows.h"

namespace heed::detail {

/// The number of rows or tokens, of `elements` elements each, that are worth a thread.
constexpr int64_t rows_per_task(int64_t elements) {
  constexpr int64_t kElements = 1 << 14;
  return elements > 0 && elements < kElements ? kElements / elements : 1;
}

/// Returns run(kernels) with the kernels for `dtype`: they compute in double for float64, and in
/// float for all others.
template <typename Run>
auto with_layer_kernels(at::ScalarType dtype, const Run& run) {
  const auto& kernels = instruction_set().layers;
  return dtype == at::kDouble ? run(kernels.of_double) : run(kernels.of_float);
}

/// Cuts contiguous tensors of one size, such as `like`, into blocks, and calls run(kernels, first,
/// elements) for each run of blocks, in parallel: elements(tensor) is the block of `tensor` from
/// element `first` on, as one row.
template <typename Run>
void for_blocks(const at::Tensor& like, const Run& run) {
  constexpr int64_t kBlock = 1 << 12;  // elements; fixed, so that threads do not change vectors
  const auto count = like.numel();
  with_layer_kernels(like.scalar_type(), [&](const auto& kernels) {
    at::parallel_for(0, ceil_div(count, kBlock), rows_per_task(kBlock),
                     [&](int64_t begin, int64_t end) {
                       const auto first = begin * kBlock, last = std::min(count, end * kBlock);
                       run(kernels, first, [&](const at::Tensor& tensor) {
                         auto block = rows_at(tensor, first, 1, 0);
                         block.columns = last - first;
                         block.column_stride = 1;
                         return block;
                       });
                     });
  });
}

}  // namespace heed::detail
