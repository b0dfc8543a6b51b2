// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <stdint.h>

#include "core/element_types.h"

namespace heed::detail {

/// The largest number of outputs that one call computes.
constexpr int64_t kFewRowsPanel = 64;

/// The largest number of packed input rows.
constexpr int64_t kFewRows = 8;

/// Packed input rows are padded to a multiple of this many floats.
constexpr int64_t kFewRowsMultiple = 32;

/// Some outputs of a layer for few input rows: output [rows, count] = input weight^T + bias. The
/// weight, bias and output have the same type: float, bfloat16 or float16.
struct FewRows {
  const void* weight;  // [count, depth]
  int64_t weight_row;
  const void* bias;   // [count], or null
  const void* input;  // [1, 2, 4 or 8 rows, depth padded], as `pack` writes it
  void* output;
  int64_t output_row;
  int64_t rows;  // at most 8; the input has zeros beyond them
  int64_t count, depth;
};

struct FewRowsKernelsOf {
  /// Packs an input row of `depth` contiguous elements. `to` has room for `depth` floats, padded.
  void (*pack)(const void* from, int64_t depth, void* to);
  void (*multiply)(const FewRows& call);
};

struct FewRowsKernels {
  FewRowsKernelsOf of[kElementTypes];  // by ElementType; null for float64
};

}  // namespace heed::detail
