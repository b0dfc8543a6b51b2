// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/cross_entropy.h"

#include <ATen/Parallel.h>

#include "cpu/layers/tasks.h"
#include "cpu/tensor_rows.h"

// Cross entropy of rows of scores [V]:
//
//   for each row, in parallel:                        # cpu/isa/layers.cpp
//     m, sums of e^(s - m) and w (s - m)              # sum_scores
//     loss, factors of the gradient                   # a few numbers
//     scores = gradient                               # score_gradients, if it is wanted
//
// A row of 200 kB, of 50,000 scores in float32, stays in the second cache between the two kernels,
// so memory is read and written once. docs/kernels.md, Loss.

namespace heed::detail {

namespace {

template <typename T>
class RowsOf {
 public:
  RowsOf(const LayerKernelsOf<T>& kernels, const CrossEntropy& of, const ScoreRows& rows)
      : kernels_(kernels), of_(of), rows_(rows) {
    const auto& weight = of.class_weight;
    if (weight.defined()) classes_.weight = weight.const_data_ptr<T>();
    if (rows.scales.defined()) scales_ = rows.scales.const_data_ptr<T>();
    classes_.softcap = static_cast<T>(of.softcap);
    classes_.weighted = of.label_smoothing != 0.0;
    if (classes_.weighted) {
      weight_sum_ = weight.defined() ? weight.sum(at::kDouble).item<double>()
                                     : static_cast<double>(of.classes);
    }
  }

  void compute(int64_t r, bool gradient) const {
    const auto columns = rows_.scores.size(1);
    const auto scores = rows_at(rows_.scores, r * columns, 1, columns);
    const auto target = rows_.targets.const_data_ptr<int64_t>()[r];
    const auto sums = kernels_.sum_scores(scores, classes_, target);
    const double scale = scales_ == nullptr ? 1.0 : scales_[r];
    const RowNumbers<double> row{
        sums.largest,        sums.exponentials,
        sums.weighted,       weight_sum_,
        sums.target,         classes_.weight == nullptr ? 1.0 : classes_.weight[target],
        rows_.scale * scale, rows_.z_scale * scale};
    rows_.losses.mutable_data_ptr<T>()[r] = static_cast<T>(loss_of(of_, row));
    if (!gradient) return;
    const auto factors = factors_of(of_, row);
    kernels_.score_gradients(
        scores, classes_, target, sums.largest,
        {static_cast<T>(factors.of_exponentials), static_cast<T>(factors.of_weights),
         static_cast<T>(factors.of_target)});
  }

 private:
  const LayerKernelsOf<T>& kernels_;
  const CrossEntropy& of_;
  const ScoreRows& rows_;
  ScoredClasses<T> classes_ = {};
  const T* scales_ = nullptr;
  double weight_sum_ = 0.0;
};

}  // namespace

void cross_entropy(const CrossEntropy& of, const ScoreRows& rows, bool gradients) {
  const auto compute = [&](const auto& all) {
    at::parallel_for(0, rows.scores.size(0), rows_per_task(rows.scores.size(1)),
                     [&](int64_t first, int64_t last) {
                       for (int64_t r = first; r < last; ++r) all.compute(r, gradients);
                     });
  };
  with_layer_kernels(rows.scores.scalar_type(),
                     [&](const auto& kernels) { compute(RowsOf(kernels, of, rows)); });
}

}  // namespace heed::detail
