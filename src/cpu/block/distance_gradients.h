// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/block/layout.h"
#include "cpu/block/tile.h"

/// The gradients of relative biases and of ALiBi's slopes. The backward pass sums them with its
/// other gradients:
///
///   for each task, which is a group and a block of keys:
///     sums = 0                                              # of the rows of a RelativeTable
///     for each tile, for each row:                          # softmax_backward
///       sums[elements] += gradients of the row's scores     # a vector at a time
///       slope sum -= |distance| * gradients
///     in the order of the tasks: total += sums
///
/// A row takes one addition for each score, where the five products of a tile take 5 D, so the
/// products bound it. docs/kernels.md, Block ("Memory").

namespace heed::detail {

/// The sums of one task.
template <typename T>
struct DistanceSums {
  explicit DistanceSums(const BlockLayout& layout, const WantedGradients& wanted)
      : table(layout.relative()),
        relative(static_cast<size_t>(wanted[5] ? table.row(layout.heads_per_group(), 0) : 0)),
        slopes(static_cast<size_t>(wanted[6] ? layout.heads_per_group() : 0)) {}

  void clear() {
    std::fill(relative.begin(), relative.end(), T{0});
    std::fill(slopes.begin(), slopes.end(), T{0});
  }

  /// Lets the rows of a tile add to these sums.
  void take_rows_of(Tile& tile, int64_t heads_per_group) {
    const auto& block = tile.block();
    tile.for_each_row([&](int64_t r, QueryRow& row) {
      const auto head = (block.first_head + r / block.queries) % heads_per_group;
      const auto query = block.first_query + r % block.queries;
      if (!relative.empty()) row.relative_sums = relative.data() + table.row(head, query);
      if (!slopes.empty()) row.slope_sum = slopes.data() + head;
    });
  }

  const RelativeTable& table;
  std::vector<T> relative;  // of the table's rows, for the heads of a group
  std::vector<T> slopes;    // [heads of a group]
};

/// The sums of all tasks.
class DistanceGradients {
 public:
  DistanceGradients(const BlockLayout& layout, const WantedGradients& wanted,
                    at::ScalarType computed_in)
      : table_(layout.relative()) {
    if (wanted[5]) {
      relative_ = at::zeros(table_.sizes(), table_.is_expanded() ? computed_in : at::kDouble);
    }
    if (wanted[6]) slopes_ = at::zeros(layout.problem().alibi_slopes.sizes(), at::kDouble);
  }

  bool are_wanted() const { return relative_.defined() || slopes_.defined(); }
  /// The gradients, or undefined tensors.
  /// @{
  at::Tensor relative_bias(at::ScalarType dtype) const {
    return relative_.defined() ? table_.by_distance(relative_).to(dtype) : at::Tensor();
  }
  at::Tensor alibi_slopes(at::ScalarType dtype) const {
    return slopes_.defined() ? slopes_.to(dtype) : at::Tensor();
  }
  /// @}

  /// Adds the sums of a task, whose group has the heads from `first_head` on.
  template <typename T>
  void add(const DistanceSums<T>& sums, int64_t batch, int64_t first_head) const {
    if (relative_.defined()) {
      const auto first = table_.row(first_head, 0);
      if (table_.is_expanded()) {
        matrix_kernels_of<T>().add(sums.relative.data(), static_cast<int64_t>(sums.relative.size()),
                                   relative_.mutable_data_ptr<T>() + first);
      } else {
        add_all(sums.relative, relative_.mutable_data_ptr<double>() + first);
      }
    }
    if (slopes_.defined()) {
      const auto row = slopes_.size(0) == 1 ? 0 : batch;
      add_all(sums.slopes, slopes_.mutable_data_ptr<double>() + row * slopes_.size(1) + first_head);
    }
  }

 private:
  template <typename T>
  static void add_all(const std::vector<T>& sums, double* totals) {
    for (size_t i = 0; i < sums.size(); ++i) totals[i] += static_cast<double>(sums[i]);
  }

  const RelativeTable& table_;
  /// Shaped as the table, or undefined. Float64, unless the table is expanded: then each element is
  /// a sum of no more numbers than there are tasks.
  at::Tensor relative_;
  at::Tensor slopes_;  // float64 [B or 1, H], or undefined
};

}  // namespace heed::detail
