#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

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
  at::IntArrayRef sizes() const { return biases_.sizes(); }
  /// Half of a row's elements, without the one in the middle.
  int64_t reach() const { return biases_.size(2) / 2; }
  /// The index of the first element of a row.
  int64_t row(int64_t head, int64_t query) const {
    return (head * biases_.size(1) + (is_expanded() ? query : 0)) * biases_.size(2);
  }
  /// Sets what `row`, whose position is set, reads of the table: nothing without a table.
  void describe(int64_t b, int64_t head, int64_t query, QueryRow& row) const;
  /// The gradients [H, 2 R + 1], from those of all elements of the table.
  at::Tensor by_distance(const at::Tensor& gradients) const;

 private:
  bool is_expanded() const { return elements_.defined(); }

  int64_t distances_ = 0;           // 2 R + 1
  at::Tensor biases_;               // contiguous
  at::Tensor elements_;             // int64 [1, L, S]: from which element each comes; if expanded
  at::Tensor positions_, of_keys_;  // int64 [B or 1, L] and [B or 1, S], or undefined
};

}  // namespace heed::detail
