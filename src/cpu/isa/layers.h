// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/matrix.h"

namespace heed::detail {

/// The angles by which the pairs of a row's first 2 * pairs elements are rotated.
template <typename T>
struct RowAngles {
  const T* cos;  // [pairs]
  const T* sin;
  int64_t pairs;
  bool interleaved;  ///< pair i is (2 i, 2 i + 1), else (i, i + pairs)
  bool back;         ///< whether to rotate by the negative angles
};

/// The scale of a normalized row. RMSNorm: row / sqrt(mean(row^2) + eps) * (weight + offset).
template <typename T>
struct NormScale {
  const void* weight;  // [columns]
  bool precise;        ///< whether the weight has type T, else that of the rows
  T offset;
  T eps;
};

/// The form of a SwiGLU: x * sigmoid(beta * x) * (u + offset), where x is the gate, clamped to at
/// most `limit`, and u is what it multiplies, clamped to [-limit, limit]. By default silu(gate) *
/// up.
struct SwiGluForm {
  double beta = 1.0;
  double limit = __builtin_inf();
  double offset = 0.0;
};

/// Counter-based dropout (philox.h) of elements. The random number of an element depends only on
/// `key` and on its place.
struct ElementDraws {
  uint64_t key;
  int64_t first;       ///< the place of the first element, a multiple of 64
  uint32_t threshold;  ///< an element is dropped if its 32-bit random number is less
};

/// The classes whose scores are rows: s = softcap tanh(score / softcap), or s = score if softcap is
/// 0.
template <typename T>
struct ScoredClasses {
  const T* weight;  ///< w [columns]; null: all are 1
  T softcap;
  bool weighted;  ///< whether ScoreSums::weighted is wanted
};

/// Sums over a row of scores, with m, the largest s.
template <typename T>
struct ScoreSums {
  T largest;       ///< m
  T exponentials;  ///< the sum of e^(s - m)
  T weighted;      ///< the sum of w (s - m); 0 if it is not wanted
  T target;        ///< the s of the row's target
};

/// Factors of the gradient of a row of scores.
template <typename T>
struct ScoreFactors {
  T of_exponentials, of_weights, of_target;
};

/// Rows that lie anywhere, each contiguous, and their weights.
template <typename T>
struct WeighedRows {
  const void* const* rows;  ///< [count]
  const T* weights;         ///< [count]; null: all are 1
  int64_t count;
};

/// In the kernels below, the elements of a row are contiguous. Numbers are computed in `T`: double
/// for rows of double, else float.
template <typename T>
struct LayerKernelsOf {
  /// to = from, rotated; all rows by the same angles.
  void (*rotate)(const Rows& from, const RowAngles<T>& angles, const Rows& to);
  /// to = from, normalized.
  void (*rms_norm)(const Rows& from, const NormScale<T>& scale, const Rows& to);
  /// to = from - mean(from), normalized, + bias [columns] of the weight's type, which may be null.
  void (*layer_norm)(const Rows& from, const NormScale<T>& scale, const void* bias, const Rows& to);
  /// to = the gradient of `from`; weight_gradient [columns] += the gradient of the weight.
  void (*rms_norm_backward)(const Rows& from, const Rows& output_gradient,
                            const NormScale<T>& scale, const Rows& to, T* weight_gradient);
  /// to = a + b.
  void (*add)(const Rows& a, const Rows& b, const Rows& to);
  /// to = silu(gate) * up, or what `form` makes of it.
  void (*swiglu)(const Rows& gate, const Rows& up, const SwiGluForm& form, const Rows& to);
  /// The gradients of gate and up.
  void (*swiglu_backward)(const Rows& gate, const Rows& up, const SwiGluForm& form,
                          const Rows& output_gradient, const Rows& gate_gradient,
                          const Rows& up_gradient);
  /// to, one row, = the sum of weight * row over `from`, whose rows have the type of `to`.
  void (*weigh_rows)(const WeighedRows<T>& from, const Rows& to);
  /// The gradients of each row of `from`, and of its weights [count], of the output's gradient, one
  /// row.
  void (*weigh_rows_backward)(const WeighedRows<T>& from, const Rows& output_gradient,
                              void* const* row_gradients, T* weight_gradients);
  /// to = from * scale where an element is kept, else 0. Both are one row.
  void (*drop_out)(const Rows& from, const ElementDraws& draws, double scale, const Rows& to);
  /// The sums of one row, `scores`, whose target is a column.
  ScoreSums<T> (*sum_scores)(const Rows& scores, const ScoredClasses<T>& classes, int64_t target);
  /// Replaces one row of scores, whose largest s is `largest`, by the gradient of its loss.
  void (*score_gradients)(const Rows& scores, const ScoredClasses<T>& classes, int64_t target,
                          T largest, const ScoreFactors<T>& factors);
};

struct LayerKernels {
  LayerKernelsOf<float> of_float;
  LayerKernelsOf<double> of_double;
};

}  // namespace heed::detail
