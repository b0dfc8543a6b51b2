// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/linear_cross_entropy.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "cpu/layers/cross_entropy.h"

namespace heed::detail {

/// The shard of the classes that this process has, of a loss that processes share, and how many
/// classes there are as a whole. The functions replace the numbers of a tensor by their maxima, and
/// by their sums, over the processes.
struct SharedClasses {
  int64_t first, whole;
  std::function<void(const at::Tensor&)> reduce_maxima, reduce_sums;
};

/// The checked arguments of a loss.
struct LossCall {
  at::Tensor x, weight, bias, targets;  // bias may be undefined
  at::Tensor class_weight;              // of all classes, in the dtype of computation; or undefined
  int64_t ignore_index;
  LossReduction reduction;
  double label_smoothing, z_loss;
  double softcap;                               // 0: none
  std::shared_ptr<const SharedClasses> shared;  // null if this process has all classes

  /// V, in all processes together.
  int64_t classes() const { return shared ? shared->whole : weight.size(0); }
};

/// The rows that count, and what a mean divides by.
struct CountedRows {
  at::Tensor places;   // [n], int64: the rows of x that count; undefined if all N are taken
  at::Tensor targets;  // [n], int64, contiguous; 0 where ignored
  at::Tensor ignored;  // bool [n], or undefined if none is: on other devices than the CPU, where
                       // taking rows would wait for the device
  at::Tensor weights;  // [], in the dtype of computation: the sum of the targets' class weights
  at::Tensor rows;     // []: how many rows count. Both are 1 if none counts, and undefined unless
                       // a mean is wanted
};

/// Reads targets on the CPU, so that ignored rows are left out; counts others by operators.
CountedRows count_rows(const LossCall& call);
/// Takes all rows, without reading the targets. The numbers have this dtype.
CountedRows count_by_operators(const LossCall& call, at::ScalarType dtype);

/// Gradients of the inputs of a loss; undefined where they are not wanted.
struct LossGradients {
  at::Tensor x, weight, bias;
};
/// Whether the gradients of x, weight and bias are wanted.
using WantedLossGradients = std::array<bool, 3>;

/// The sums of rows by which their gradients are computed again, without exchanges.
struct RowSums {
  at::Tensor largest, exponentials;  // [n]
};

/// The results of a pass over the rows.
struct LossPass {
  at::Tensor losses;        // [n]
  LossGradients gradients;  // of the sum of losses; some are in the dtype of computation
  RowSums sums;             // if the classes are shared
};

/// Computes losses and gradients, a block of rows at a time; `remaining_factor` says what they are
/// still to be multiplied by. `upstream` [n], in the dtype of computation, are gradients by which
/// those of the rows' losses are multiplied; it may be undefined. With `known` sums, only gradients
/// are computed.
LossPass pass_over_rows(const LossCall& call, const CountedRows& rows,
                        const WantedLossGradients& wanted, const at::Tensor& upstream = {},
                        const RowSums& known = {});

/// A number [], by which the losses and gradients of a pass are still to be multiplied; undefined
/// for 1. For float16 this divides by the mean's divisor: gradients that were divided before might
/// be too small for float16.
at::Tensor remaining_factor(const LossCall& call, const CountedRows& rows);

/// While this object exists, it limits the bytes of a block's scores in all threads. For tests.
class ScopedLossBlocks {
 public:
  explicit ScopedLossBlocks(int64_t bytes);
  ~ScopedLossBlocks();
  ScopedLossBlocks(const ScopedLossBlocks&) = delete;
  ScopedLossBlocks& operator=(const ScopedLossBlocks&) = delete;

 private:
  const int64_t previous_;
};

}  // namespace heed::detail
