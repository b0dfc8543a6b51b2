#pragma once

#include "cpu/isa/matrix.h"

namespace heed::detail {

/// The numbers in which a packed weight is kept.
enum class PackedFormat { float32, bfloat16, float16, int8, int4 };

constexpr int kPackedFormats = static_cast<int>(PackedFormat::int4) + 1;  // it is the last

/// The outputs of a panel, in which packed weights are laid out.
constexpr int64_t kPackedPanel = 64;

/// Consecutive numbers of the depth of a panel of a packed weight, for some of its outputs. Rows
/// are kPackedPanel elements apart:
///
///   float32, float16, int8   a row for each number of the depth
///   bfloat16                 a row for each two: pairs
///   int4                     a row for each two: a byte, the first number in its low bits
struct PackedRows {
  const void* values;
  /// int4: [groups, kPackedPanel] each, in bfloat16; a weight is scale * number + offset.
  const void* scales;
  const void* offsets;
  int64_t count;    // numbers of the depth; the first is even, and of int4 the first of a group
  int64_t group;    // int4: numbers of the depth that share a scale; even
  int64_t columns;  // outputs; a multiple of kColumnMultiple
};

/// Outputs [rows, columns] of a layer: to = sums * scales + bias.
struct PackedOutputs {
  const float* sums;  // rows are sums_row apart
  int64_t sums_row;
  const float* scales;  // [columns], or null
  const void* bias;     // [columns] of the type of `to`, or null
  Rows to;              // its columns are contiguous
};

/// Kernels for products with packed weights.
struct PackedKernels {
  /// to [count, kPackedPanel] = the numbers; those of int4 with their scales. By PackedFormat.
  void (*to_floats[kPackedFormats])(const PackedRows& from, float* to);
  /// to [count / 2 rounded up, kPackedPanel] = pairs of them. Null for a format that bfloat16
  /// cannot hold.
  void (*to_pairs[kPackedFormats])(const PackedRows& from, BFloat16Pair* to);
  void (*finish)(const PackedOutputs& outputs);
};

}  // namespace heed::detail
