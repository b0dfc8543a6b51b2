// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/matrix.h"

namespace heed::detail {

/// The numbers in which a packed weight is kept.
enum class PackedFormat { float32, bfloat16, float16, int8, int4 };

constexpr int kPackedFormats = static_cast<int>(PackedFormat::int4) + 1;  // it is the last

/// The outputs of a panel, in which packed weights are laid out.
constexpr int64_t kPackedPanel = 64;

/// The offset of a group of int4, over its scale, where a group has none of its own: numbers are
/// from -8 to 7.
constexpr int kSymmetricOffset = -8;

/// Consecutive numbers of the depth of a panel of a packed weight, for some of its outputs. Rows
/// are kPackedPanel elements apart:
///
///   float32, float16, int8   a row for each number of the depth
///   bfloat16                 a row for each two: pairs
///   int4                     a row for each two: a byte, the first number in its low bits
struct PackedRows {
  const void* values;
  /// int4: [groups, kPackedPanel] each, in bfloat16; a weight is scale * number + offset. If
  /// offsets are null, an offset is kSymmetricOffset * scale.
  const void* scales;
  const void* offsets;
  int64_t count;    // numbers of the depth; the first is even, and of int4 the first of a group
  int64_t group;    // int4: numbers of the depth that share a scale; even
  int64_t columns;  // outputs; a multiple of kColumnMultiple
};

/// The largest number of input rows that PackedKernels::add_few and add_few_pairs take.
template <typename Operand>
constexpr int64_t kPackedFew = 4 * kDepthOf<Operand>;

/// The numbers of the depth in a block of such products. Those of a panel stay in the L1 or L2
/// cache.
constexpr int64_t kPackedFewNumbers = 512;

/// sums [rows, columns] += input weight^T, for a block of the depth. Rows of sums are kPackedPanel
/// apart.
template <typename Operand>
struct PackedFew {
  PackedRows weight;
  const Operand* input;  // rows are input_row apart; a number of 0 follows an odd count
  int64_t input_row, rows;
  const float* group_sums;  // int4: the sums of the input over its groups; or null
  int64_t group_sums_row;
  float* sums;
};

/// A function of a layer's outputs.
enum class OutputFunction { identity, relu, gelu, gelu_tanh, gelu_sigmoid, silu, tanh };

/// Outputs [rows, columns] of a layer: to = function(sums * row_scales * scales + bias).
struct PackedOutputs {
  const float* sums;  // rows are sums_row apart
  int64_t sums_row;
  const float* row_scales;  // [rows], or null
  const float* scales;      // [columns], or null
  const void* bias;         // [columns] of the type of `to`, or null
  Rows to;                  // its columns are contiguous
  OutputFunction function = OutputFunction::identity;
};

/// Kernels for products with packed weights.
struct PackedKernels {
  /// to [count, kPackedPanel] = the numbers; those of int4 with their scales. By PackedFormat.
  void (*to_floats[kPackedFormats])(const PackedRows& from, float* to);
  /// to [count / 2 rounded up, kPackedPanel] = pairs of them. Null for a format that bfloat16
  /// cannot hold.
  void (*to_pairs[kPackedFormats])(const PackedRows& from, BFloat16Pair* to);
  /// Products of few rows, which read the weight as it is packed. By PackedFormat.
  void (*add_few[kPackedFormats])(const PackedFew<float>& few);
  /// Products of few rows by pairs of bfloat16. The depth of int8 is even. Null for a format that
  /// bfloat16 cannot hold, and unless InstructionSet::multiplies_bfloat16.
  void (*add_few_pairs[kPackedFormats])(const PackedFew<BFloat16Pair>& few);
  /// to[i] = the sum of group i of `count` numbers. A group is a multiple of 32.
  void (*sum_groups)(const float* from, int64_t count, int64_t group, float* to);
  void (*finish)(const PackedOutputs& outputs);
};

}  // namespace heed::detail
