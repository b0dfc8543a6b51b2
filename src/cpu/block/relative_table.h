// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "cpu/isa/scores.h"

namespace heed::detail {

/// The table of relative biases, as kernels read it. If tokens have relative positions that all
/// sequences share, and the scores of a head are few, the table gets a row for each query, with an
/// element for each key: a kernel then need not look at the position of each key.
///
///   [H, 1, 2 R + 1]      each head's elements by distance
///   [H, L, S or S + 1]   expanded: row i of head h has the biases of the scores of query i
class RelativeTable {
 public:
  explicit RelativeTable(const Problem& problem);

  bool defined() const { return biases_.defined(); }
  bool is_expanded() const { return !elements_.empty(); }
  at::IntArrayRef sizes() const { return biases_.sizes(); }
  /// Half of a row's elements, without the one in the middle.
  int64_t reach() const { return width_ / 2; }
  /// The index of the first element of a row.
  int64_t row(int64_t head, int64_t query) const {
    return (is_expanded() ? head * queries_ + query : head) * width_;
  }
  /// Sets what `row`, whose position is set, reads of the table: nothing without a table.
  void describe(int64_t b, int64_t head, int64_t query, QueryRow& row) const {
    row.relative_bias = data_ == nullptr ? nullptr : data_ + this->row(head, query) * item_;
    row.relative_keys = of_keys_.at(b);
    // In an expanded row, key j gets element j.
    row.relative_position = is_expanded()                 ? reach()
                            : of_queries_.data == nullptr ? row.position
                                                          : of_queries_.at(b)[query];
  }
  /// The gradients [H, 2 R + 1] in float64, from those of all elements of the table.
  at::Tensor by_distance(const at::Tensor& gradients) const;

 private:
  /// Contiguous rows [B or 1, n] of numbers, or none.
  struct Rows {
    const int64_t* data = nullptr;
    int64_t stride = 0;  // 0: all batches have the first
    const int64_t* at(int64_t b) const { return data == nullptr ? nullptr : data + b * stride; }
  };

  template <typename T>
  void expand(const at::Tensor& table);
  template <typename T>
  void add_by_distance(const at::Tensor& gradients, at::Tensor& sums) const;

  at::Tensor biases_, relative_rows_, relative_keys_;
  const char* data_ = nullptr;  // of biases_
  int64_t item_ = 0, width_ = 0, queries_ = 0, keys_ = 0, distances_ = 0;
  std::vector<int32_t> elements_;  // [L, S]: from which element each comes, if expanded
  Rows of_queries_, of_keys_;
};

}  // namespace heed::detail
