// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <stdint.h>

#include "core/element_types.h"

namespace heed::detail {

/// The largest number of keys in a block: `seen` has 64 bits for them.
constexpr int64_t kDecodeBlock = 64;

/// Keys in a cell: a multiple of those in a micro-tile of any instruction set.
constexpr int64_t kDecodeCell = 16;

/// Packed query rows, and rows of a state's output, are padded to a multiple of this many floats:
/// two of the widest vectors.
constexpr int64_t kDecodeRowMultiple = 32;

/// The partial results of up to 8 rows: attention to the keys so far.
struct DecodeState {
  float maximum[16];  // of the scores, by row; by lane until `finish`
  float sum[16];      // of exp(score - maximum), by row; by lane until `finish`
  float* output;      // [rows, Dv padded]: sum of exp(score - maximum) * value
};

/// A block of keys and values in float32, bfloat16, float16 or int8, and the rows of one group
/// that attend to it.
struct DecodeBlock {
  const void* key;                   // [count, head_dim]
  const void* value;                 // [count, value_head_dim]
  int64_t key_stride, value_stride;  // elements between rows
  int64_t head_dim, value_head_dim;
  const float* key_scales;    // [count] of int8, or null
  const float* value_scales;  // [count]
  int64_t count;              // at most kDecodeBlock; fast where a multiple of kDecodeCell
  int64_t rows;               // 1, 2, 4 or 8
  const float* query;         // [rows, head_dim padded], packed
  float softcap;              // of the scores, or 0
  const float* added;         // [rows, kDecodeBlock], added to scores after the softcap; or null
  const uint64_t* seen;       // [rows]: a bit for each key, 1 if the row sees it; null: all
  const void* next_key;       // to be prefetched, as many bytes as `key` has
  const void* next_value;     // to be prefetched, as many bytes as `value` has
};

/// The steps of decoding for 1, 2, 4 or 8 rows: the caller packs their queries and starts their
/// state, attends to one block after the other, and finishes.
struct DecodeKernelsOf {
  /// to [head_dim padded] = factor * from, in an order that the kernel chooses.
  void (*pack)(const void* from, int64_t head_dim, float factor, float* to);
  void (*attend)(const DecodeBlock& block, DecodeState* state);
  bool (*are_finite)(const void* from, int64_t from_row, int64_t count, int64_t columns);
  /// Reduces the lanes of the state to one maximum and one sum for each row, and puts the elements
  /// of the output into their natural order.
  void (*finish)(int64_t rows, int64_t value_head_dim, DecodeState* state);
};

struct DecodeKernels {
  DecodeKernelsOf of[kElementTypes];  // by ElementType; null for float64
  DecodeKernelsOf of_int8;            // with queries and results in float32
  int64_t max_rows;                   // that one call of `attend` takes
};

}  // namespace heed::detail
