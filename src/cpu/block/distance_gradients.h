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
///     sums = 0                                              [heads of the group, 2 R + 1]
///     for each tile, for each row:                          # softmax_backward
///       sums[distance] += gradients of the row's scores     # a vector at a time
///       slope sum -= |distance| * gradients
///     in the order of the tasks: total += sums              # in float64
///
/// A row takes one addition for each score, where the five products of a tile take 5 D, so the
/// products bound it. docs/kernels.md, Block ("Memory").

namespace heed::detail {

/// The sums of one task.
template <typename T>
struct DistanceSums {
  explicit DistanceSums(const BlockLayout& layout, const WantedGradients& wanted)
      : elements(wanted[5] ? layout.problem().relative_bias.size(1) : 0),
        relative(static_cast<size_t>(layout.heads_per_group() * elements)),
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
      if (!relative.empty()) row.relative_sums = relative.data() + head * elements;
      if (!slopes.empty()) row.slope_sum = slopes.data() + head;
    });
  }

  int64_t elements;         // 2 R + 1
  std::vector<T> relative;  // [heads of a group, elements]
  std::vector<T> slopes;    // [heads of a group]
};

/// The sums of all tasks.
class DistanceGradients {
 public:
  DistanceGradients(const Problem& problem, const WantedGradients& wanted) {
    const auto like = [](const at::Tensor& tensor) {
      return at::zeros(tensor.sizes(), tensor.options().dtype(at::kDouble).requires_grad(false));
    };
    if (wanted[5]) relative_ = like(problem.relative_bias);
    if (wanted[6]) slopes_ = like(problem.alibi_slopes);
  }

  bool are_wanted() const { return relative_.defined() || slopes_.defined(); }
  /// The gradients, or undefined tensors.
  /// @{
  at::Tensor relative_bias(at::ScalarType dtype) const { return rounded(relative_, dtype); }
  at::Tensor alibi_slopes(at::ScalarType dtype) const { return rounded(slopes_, dtype); }
  /// @}

  /// Adds the sums of a task, whose group has the heads from `first_head` on.
  template <typename T>
  void add(const DistanceSums<T>& sums, int64_t batch, int64_t first_head) const {
    if (relative_.defined()) {
      add_all(sums.relative, relative_.mutable_data_ptr<double>() + first_head * sums.elements);
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
  static at::Tensor rounded(const at::Tensor& totals, at::ScalarType dtype) {
    return totals.defined() ? totals.to(dtype) : totals;
  }

  at::Tensor relative_;  // float64 [H, 2 R + 1], or undefined
  at::Tensor slopes_;    // float64 [B or 1, H], or undefined
};

}  // namespace heed::detail
