// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "core/ceil_div.h"
#include "core/direct.h"
#include "cpu/capability.h"
#include "cpu/layers/dense.h"
#include "cpu/tensor_rows.h"

/// Inputs of products with packed weights, as operands of their kernels.

namespace heed::detail {

/// The rows of an input, as one kind of operand, whose products are summed as Sums.
template <typename Operand, typename Sum = float>
struct InputRows {
  at::Tensor memory;
  const Operand* data = nullptr;
  int64_t count = 0;
  int64_t depth = 0;  // in operands, and the distance of rows
};

/// Rows that are rounded to bytes. Sums of products with int8 are int32_t and need corrections;
/// those with int4 are floats and need the sums of groups.
template <typename Sum>
struct InputRows<ByteQuad, Sum> {
  at::Tensor memory, scales, corrections, group_sums;
  const ByteQuad* data = nullptr;
  int64_t count = 0;
  int64_t depth = 0;
};

/// Few rows, with a 0 after an odd number of elements, and the sums of the groups of int4.
template <typename Operand>
struct FewInputRows {
  at::Tensor memory, sums;
  const Operand* data = nullptr;
  int64_t count = 0, row = 0;
  const float* group_sums = nullptr;
  int64_t groups = 0;
};

inline FewInputRows<float> as_few(const at::Tensor& input, int64_t rows, int64_t group) {
  const auto from = dense(input);
  const auto depth = input.size(-1), row = round_up(depth, int64_t{2});
  FewInputRows<float> few;
  few.memory = empty_on_cpu({rows, row}, at::kFloat);
  auto* to = few.memory.mutable_data_ptr<float>();
  instruction_set().matrix.of_float.pack(rows_at(from, 0, rows, depth), to, row);
  few.data = to;
  few.count = rows;
  few.row = row;
  if (group == 0) return few;
  few.groups = depth / group;
  few.sums = empty_on_cpu({rows, few.groups}, at::kFloat);
  auto* sums = few.sums.mutable_data_ptr<float>();
  for (int64_t r = 0; r < rows; ++r) {
    instruction_set().packed.sum_groups(to + r * row, depth, group, sums + r * few.groups);
  }
  few.group_sums = sums;
  return few;
}

inline InputRows<float> as_floats(const at::Tensor& input, int64_t rows) {
  const auto depth = input.size(-1);
  if (input.scalar_type() == at::kFloat) {
    const auto memory = dense(input);
    return {memory, memory.const_data_ptr<float>(), rows, depth};
  }
  const auto from = dense(input);
  const auto memory = empty_on_cpu({rows, depth}, at::kFloat);
  auto* to = memory.mutable_data_ptr<float>();
  instruction_set().matrix.of_float.pack(rows_at(from, 0, rows, depth), to, depth);
  return {memory, to, rows, depth};
}

/// Rows of zeros follow, `padded` in all.
inline InputRows<BFloat16Pair> as_pairs(const at::Tensor& input, int64_t rows, int64_t padded) {
  const auto depth = input.size(-1), pairs = ceil_div(depth, int64_t{2});
  const auto from = dense(input);
  if (depth % 2 == 0 && padded == rows) {
    return {from, static_cast<const BFloat16Pair*>(from.const_data_ptr()), rows, pairs};
  }
  const auto memory = empty_on_cpu({padded, pairs}, at::kInt);
  auto* to = static_cast<BFloat16Pair*>(memory.mutable_data_ptr());
  instruction_set().matrix.of_pairs.pack(rows_at(from, 0, rows, depth), to, pairs);
  std::fill(to + rows * pairs, to + padded * pairs, 0);
  return {memory, to, padded, pairs};
}

inline FewInputRows<BFloat16Pair> as_few_pairs(const at::Tensor& input, int64_t rows,
                                               int64_t group) {
  FewInputRows<BFloat16Pair> few;
  if (group > 0) {
    const auto floats = as_few(input, rows, group);
    few.sums = floats.sums;
    few.group_sums = floats.group_sums;
    few.groups = floats.groups;
  }
  const auto all = as_pairs(input, rows, rows);
  few.memory = all.memory;
  few.data = all.data;
  few.count = rows;
  few.row = all.depth;
  return few;
}

/// `group` is that of int4, or 0.
template <typename Sum>
InputRows<ByteQuad, Sum> as_quads(const at::Tensor& input, int64_t rows, int64_t group) {
  constexpr int64_t kRowsOfTask = 16;
  const auto depth = input.size(-1), quads = ceil_div(depth, kDepthOf<ByteQuad>);
  const auto groups = group > 0 ? depth / group : 0;
  const auto from = dense(input);
  InputRows<ByteQuad, Sum> to;
  to.memory = empty_on_cpu({rows, quads}, at::kInt);
  to.scales = empty_on_cpu({rows}, at::kFloat);
  to.corrections = empty_on_cpu({rows}, at::kInt);
  to.group_sums = empty_on_cpu({rows, groups}, at::kFloat);
  to.count = rows;
  to.depth = quads;
  auto* numbers = to.memory.template mutable_data_ptr<int32_t>();
  auto* scales = to.scales.template mutable_data_ptr<float>();
  auto* corrections = to.corrections.template mutable_data_ptr<int32_t>();
  auto* sums = to.group_sums.template mutable_data_ptr<float>();
  at::parallel_for(0, rows, kRowsOfTask, [&](int64_t first, int64_t last) {
    instruction_set().packed_quads.quantize(rows_at(from, first * depth, last - first, depth),
                                            {numbers + first * quads, quads, scales + first,
                                             corrections + first, group, sums + first * groups});
  });
  to.data = numbers;
  return to;
}

}  // namespace heed::detail
