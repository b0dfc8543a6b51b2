// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/dense.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "core/ceil_div.h"
#include "core/direct.h"
#include "cpu/capability.h"
#include "cpu/layers/tasks.h"
#include "cpu/tensor_rows.h"

// A transposed matrix of float32 becomes contiguous, with all threads:
//
//   for each 16 columns of the source, in parallel:      # a cache line of each row
//     write them as 16 rows of the result
//
//   source [R, C]   | . . # # . . |         result [C, R]   | . . . . |
//                   | . . # # . . |    ->                   | # # # # |    # 16 columns
//                   | . . # # . . |                         | # # # # |
//
// Nothing is computed, so memory is the bound. docs/kernels.md, Projections ("Gradients").

namespace heed::detail {

namespace {

/// `matrix` [R, C], transposed to a contiguous [C, R].
at::Tensor transposed(const at::Tensor& matrix) {
  constexpr int64_t kBlock = 16;  // columns: a cache line of each row
  const auto rows = matrix.size(0), columns = matrix.size(1);
  auto result = empty_on_cpu({columns, rows}, matrix.scalar_type());
  auto* to = result.data_ptr<float>();
  const auto& kernels = instruction_set().matrix.of_float;
  at::parallel_for(0, ceil_div(columns, kBlock), rows_per_task(kBlock * rows),
                   [&](int64_t begin, int64_t end) {
                     const auto first = begin * kBlock, last = std::min(columns, end * kBlock);
                     auto block = rows_at(matrix, first * matrix.stride(1), rows, matrix.stride(0));
                     block.columns = last - first;
                     kernels.pack_transposed(block, 1.0F, to + first * rows, rows);
                   });
  return result;
}

}  // namespace

at::Tensor dense(const at::Tensor& tensor) {
  const bool is_transposed = tensor.dim() == 2 && tensor.stride(0) == 1 &&
                             tensor.scalar_type() == at::kFloat && !tensor.is_contiguous();
  return is_transposed ? transposed(tensor.t()) : tensor.contiguous();
}

}  // namespace heed::detail
