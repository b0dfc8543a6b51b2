// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "cpu/decode/splits.h"
#include "cpu/isa/decode.h"
#include "cpu/tensor_rows.h"

namespace heed::detail {

/// The kernels that decode a dtype, or null.
const DecodeKernelsOf* decode_kernels(at::ScalarType dtype);

/// How a problem is decoded: the tensors as kernels read them, and the strips of rows, the blocks
/// of keys and the splits into which it is cut.
struct DecodePlan {
  explicit DecodePlan(const Problem& p);

  /// Row `row` of group g is query `position(row)` of head `head(g, row)`.
  /// @{
  int64_t head(int64_t g, int64_t row) const {
    return g * (problem.heads() / problem.groups()) + row / problem.query_length();
  }
  int64_t position(int64_t row) const { return row % problem.query_length(); }
  /// @}
  /// Whether masks may show different keys to different heads.
  bool heads_differ() const;
  /// Whether some keys of `block` may be hidden from a query of sequence b.
  bool may_hide(int64_t b, KeyRange block) const;
  bool adds() const {
    return bias.defined() || problem.alibi_slopes.defined() || problem.relative_bias.defined();
  }
  bool has_global() const { return problem.global_keys.defined(); }

  /// The address of a key in `tensor`, which is the problem's key, value or their scales.
  template <typename T = char>
  const T* key_address(const at::Tensor& tensor, int64_t b, int64_t g, int64_t key) const {
    if (!problem.paged()) return row_address<T>(tensor, b, g, key);
    const auto page_size = tensor.size(2);
    return row_address<T>(tensor, problem.paged()->page(b, key / page_size), g, key % page_size);
  }
  /// How many of `keys` the next block has: a multiple of kDecodeCell if there are so many, and
  /// none of another page.
  int64_t block_of(KeyRange keys) const;
  int64_t columns_per_sequence() const { return problem.groups() / column_groups; }
  int64_t column(int64_t b, int64_t g) const {
    return b * columns_per_sequence() + g / column_groups;
  }

  /// A bit for each of `keys`, at most 64: whether query i of head h sees it.
  uint64_t seen_keys(int64_t b, int64_t h, int64_t i, KeyRange keys) const;

  const Problem& problem;
  at::Tensor query, mask, documents, key_documents, bias, sinks;
  at::Tensor global_rows, global_keys;      // bool [B, L] and [B, S], or undefined
  at::Tensor relative_rows, relative_keys;  // int64 [B, L] and [B, S], or undefined
  const DecodeKernelsOf& kernels;
  int64_t rows;                   // query rows of a group: H / G * L
  std::vector<int64_t> strips;    // the rows of each strip
  int64_t padded_rows;            // at least the sum of `strips`
  int64_t query_row, output_row;  // floats of a row, with the padding for kernels
  int64_t column_groups;          // groups of a column: 1, or all of them
  Splits splits;
  int64_t block_keys;  // the most keys of a block

 private:
  Splits make_splits() const;
  /// The keys of sequence b, without blocks at either end that none of its queries sees.
  KeyRange keys_of(int64_t b) const;
  /// Whether a query of sequence b sees a key of `block`.
  bool are_seen(int64_t b, KeyRange block) const;
};

}  // namespace heed::detail
