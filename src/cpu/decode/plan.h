#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "cpu/decode/runs.h"
#include "cpu/isa/decode.h"
#include "cpu/tensor_rows.h"

namespace heed::detail {

/// The kernels that decode a dtype, or null.
const DecodeKernelsOf* decode_kernels(at::ScalarType dtype);

/// How a problem is decoded: what the kernels read, in which tiles, blocks and runs.
struct DecodePlan {
  explicit DecodePlan(const Problem& p);

  int64_t head(int64_t g, int64_t row) const {
    return g * (problem.heads() / problem.groups()) + row / problem.query_length();
  }
  int64_t position(int64_t row) const { return row % problem.query_length(); }
  /// Whether some of these keys may be hidden from a query.
  bool may_hide(int64_t b, KeyRange block) const;
  bool adds() const { return bias.defined() || alibi_slopes != nullptr; }

  /// Of key or value `tensor`, or of its scales.
  template <typename T = char>
  const T* key_address(const at::Tensor& tensor, int64_t b, int64_t g, int64_t key) const {
    if (!problem.pages) return row_address<T>(tensor, b, g, key);
    const auto page_size = tensor.size(2);
    return row_address<T>(tensor, problem.pages->page(b, key / page_size), g, key % page_size);
  }
  /// Of so many keys that follow: whole tiles while there are some, and none of another page.
  int64_t block_of(KeyRange keys) const;
  int64_t columns_per_sequence() const { return problem.groups() / column_groups; }
  int64_t column(int64_t b, int64_t g) const {
    return b * columns_per_sequence() + g / column_groups;
  }

  /// Which of at most 64 keys a query sees.
  uint64_t seen_keys(int64_t b, int64_t h, int64_t i, KeyRange keys) const;

  const Problem& problem;
  at::Tensor query, mask, documents, key_documents, bias, sinks;
  const float* alibi_slopes;  // [H], or null
  const DecodeKernelsOf& kernels;
  int64_t rows;                   // a group
  std::vector<int64_t> tiles;     // of rows
  int64_t tile_rows;              // at least their sum
  int64_t query_row, output_row;  // floats of a row as the kernels pad it
  int64_t column_groups;
  Runs runs;
  int64_t block_keys;

 private:
  Runs make_runs() const;
  /// From the first to the last block of keys of which a query of the sequence sees some.
  KeyRange keys_of(int64_t b) const;
  bool are_seen(int64_t b, KeyRange block) const;
};

}  // namespace heed::detail
