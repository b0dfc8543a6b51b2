// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>

namespace heed::detail {

/// The cross entropy of rows of scores. With s = softcap tanh(score / softcap), m the largest s of
/// a row, lse = m + log(sum of e^(s - m)), and s_y and w_y those of its target, a row's loss is
///
///   scale ((1 - label_smoothing) w_y (lse - s_y) + label_smoothing / V * sum of w (lse - s))
///   + z_scale z_loss lse^2
struct CrossEntropy {
  int64_t classes;  ///< V
  /// w [V], contiguous, in the dtype of computation; undefined: all are 1.
  at::Tensor class_weight;
  double label_smoothing, z_loss;
  double softcap;  ///< 0: s = score
};

/// The numbers of a row from which its loss and gradient follow, or of several, as tensors [n].
template <typename Number>
struct RowNumbers {
  Number largest;        // m
  Number exponentials;   // the sum of e^(s - m)
  Number weighted;       // the sum of w (s - m), if label_smoothing is not 0
  Number weight_sum;     // the sum of w, if label_smoothing is not 0
  Number target;         // s_y
  Number target_weight;  // w_y
  Number scale, z_scale;

  Number log_sum() const {
    using std::log;  // at::log is found by the argument's type
    return log(exponentials);
  }
};

template <typename Number>
Number loss_of(const CrossEntropy& of, const RowNumbers<Number>& row) {
  const Number log_sum = row.log_sum();
  Number loss =
      (log_sum + (row.largest - row.target)) * row.target_weight * (1.0 - of.label_smoothing);
  if (of.label_smoothing != 0.0) {
    const double share = of.label_smoothing / static_cast<double>(of.classes);
    loss = loss + (row.weight_sum * log_sum - row.weighted) * share;
  }
  loss = loss * row.scale;
  if (of.z_loss == 0.0) return loss;
  const Number lse = row.largest + log_sum;
  return loss + lse * lse * row.z_scale * of.z_loss;
}

/// The gradient of the loss with respect to s is
///   of_exponentials e^(s - m) - of_weights w - of_target, the last for the target alone.
template <typename Number>
struct RowFactors {
  Number of_exponentials;
  Number of_weights;  // if label_smoothing is not 0
  Number of_target;
};

template <typename Number>
RowFactors<Number> factors_of(const CrossEntropy& of, const RowNumbers<Number>& row) {
  RowFactors<Number> factors{};
  factors.of_target = row.target_weight * row.scale * (1.0 - of.label_smoothing);
  Number of_softmax = factors.of_target;
  if (of.label_smoothing != 0.0) {
    factors.of_weights = row.scale * (of.label_smoothing / static_cast<double>(of.classes));
    of_softmax = of_softmax + factors.of_weights * row.weight_sum;
  }
  if (of.z_loss != 0.0) {
    of_softmax = of_softmax + (row.largest + row.log_sum()) * row.z_scale * (2.0 * of.z_loss);
  }
  factors.of_exponentials = of_softmax / row.exponentials;
  return factors;
}

/// A block of rows on the CPU.
struct ScoreRows {
  at::Tensor scores;   // [n, V], contiguous
  at::Tensor targets;  // [n], int64, contiguous, each in [0, V)
  double scale, z_scale;
  /// [n], contiguous, in the dtype of computation: factors of both scales; undefined: all are 1.
  at::Tensor scales;
  at::Tensor losses;  // [n], contiguous, in the dtype of computation
};

/// Writes the losses of the rows. If `gradients`, replaces the scores by the gradients of their
/// losses. By heed's kernels, of which there must be some.
void cross_entropy(const CrossEntropy& of, const ScoreRows& rows, bool gradients);

}  // namespace heed::detail
