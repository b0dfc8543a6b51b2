// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/packed.h"

namespace heed::detail {

/// Input rows that are rounded to bytes: a number is scale * byte.
struct QuantizedRows {
  ByteQuad* numbers;  // rows are numbers_row apart, and end with zeros
  int64_t numbers_row;
  float* scales;         // [rows]; NaN for a row with NaN or infinity
  int32_t* corrections;  // [rows]: what PackedQuadKernels::to_quads adds to the sums of int8
  int64_t group;         // int4: numbers that share a scale; else 0
  float* group_sums;     // int4: [rows, columns / group], the sums of the bytes
};

/// Sums over the groups of int4: product.c [rows, columns] (+)= the sum over all groups of
///
///   scales[group] * (a b over the group) + offsets[group] * group_sums[row][group]
///
/// b are quads of PackedQuadKernels::to_quads; the depth is a multiple of the group. product.ahead
/// is not null.
struct QuadGroups {
  Product<float, ByteQuad> product;
  const void* scales;  // as those of PackedRows
  const void* offsets;
  int64_t group;
  const float* group_sums;  // rows are group_sums_row apart
  int64_t group_sums_row;
};

/// Outputs [rows, columns] of a layer:
///
///   to = function((sums - corrections) * row_scales * scales + bias)
struct QuadOutputs {
  const int32_t* sums;  // rows are sums_row apart
  int64_t sums_row;
  const int32_t* corrections;
  const float* row_scales;
  const float* scales;  // [columns]
  const void* bias;     // [columns] of the type of `to`, or null
  Rows to;              // its columns are contiguous
  OutputFunction function = OutputFunction::identity;
};

/// Kernels for products of packed weights with inputs that are rounded to bytes. Null unless
/// InstructionSet::multiplies_bytes.
struct PackedQuadKernels {
  void (*quantize)(const Rows& from, const QuantizedRows& to);  // columns are contiguous
  /// to [count / 4 rounded up, kPackedPanel] = the numbers of int8, with 128 added, or those of
  /// int4. By PackedFormat; null for the others.
  void (*to_quads[kPackedFormats])(const PackedRows& from, ByteQuad* to);
  void (*multiply_groups)(const QuadGroups& groups);
  void (*finish)(const QuadOutputs& outputs);
};

}  // namespace heed::detail
