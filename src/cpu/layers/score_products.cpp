// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/score_products.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/ceil_div.h"
#include "core/direct.h"
#include "core/plain.h"
#include "cpu/capability.h"
#include "cpu/isa/matrix.h"
#include "cpu/tensor_rows.h"

// The gradients of x [n, E] and weight [V, E] from those of scores g = x weight^T [n, V]:
//
//   for each thread, in parallel, its share of the classes, 384 of them at a time:
//     g [n, 384]                           copied, as floats or as pairs of bfloat16
//     for each panel of 64 of the E columns, in which weight and x are copied too:
//       sums [n, 64] of the thread       += g weight[384, 64]      # cpu/isa/matrix.cpp
//       gradient of weight [384, 64]     += g^T x[n, 64]
//   gradient of x = the sums of all threads
//
// So scores are read from memory once for both products, and g stays in the L2 cache. The first
// product prefetches the gradient of weight that the second one adds to, and this one the weight's
// next panel. Pairs of g lie along the classes in the first product and along the rows in the
// second, so that they are copied twice. The multiply units bound it. docs/kernels.md, Loss.

namespace heed::detail {

namespace {

constexpr int64_t kClassesAtOnce = 384;
constexpr int64_t kPanelColumns = 64;
constexpr int64_t kSumBytes = int64_t{8} << 20;  // of all threads together
static_assert(kClassesAtOnce % (2 * kMicroRows) == 0);

/// Some columns of an operand.
struct Panel {
  int64_t first, count;
};

/// Rows [first, first + count) of these columns.
Rows rows_of(const at::Tensor& matrix, int64_t first, int64_t count, const Panel& columns) {
  const auto width = matrix.size(1);
  auto rows = rows_at(matrix, first * width + columns.first, count, width);
  rows.columns = columns.count;
  return rows;
}

void pack_rows(const Rows& rows, float* to) {
  instruction_set().matrix.of_float.pack(rows, to, kPanelColumns);
}
void pack_rows(const Rows& rows, BFloat16Pair* to) {
  instruction_set().matrix.of_pairs.pack_columns(rows, to, kPanelColumns);
}

/// x as the second operand of products along the rows: [n, 64] for each panel of columns.
template <typename Operand>
class RowOperands {
 public:
  explicit RowOperands(const at::Tensor& x)
      : rows_(ceil_div(x.size(0), kDepthOf<Operand>)),
        panels_(
            empty_on_cpu({ceil_div(x.size(1), kPanelColumns), rows_, kPanelColumns}, at::kInt)) {
    for (int64_t column = 0; column < x.size(1); column += kPanelColumns) {
      const Panel panel{column, std::min(kPanelColumns, x.size(1) - column)};
      pack_rows(rows_of(x, 0, x.size(0), panel), memory() + column * rows_);
    }
  }
  const Operand* panel(const Panel& columns) const { return memory() + columns.first * rows_; }

 private:
  Operand* memory() const { return static_cast<Operand*>(panels_.mutable_data_ptr()); }

  const int64_t rows_;  // in operands
  const at::Tensor panels_;
};

/// One thread's copies of g, and the weight's panel beside it.
template <typename Operand>
class ClassOperands;

template <>
class ClassOperands<float> {
 public:
  explicit ClassOperands(int64_t rows)
      : scores_(new float[static_cast<size_t>(rows * kRow)]),
        weight_(new float[kClassesAtOnce * kPanelColumns]) {}

  void copy(const Rows& scores) {
    instruction_set().matrix.of_float.pack(scores, scores_.get(), kRow);
  }
  const float* by_classes() const { return scores_.get(); }
  const float* by_rows() const { return scores_.get(); }
  const float* weight(const Rows& panel) const {
    pack_rows(panel, weight_.get());
    return weight_.get();
  }

  // The distances of rows.
  static constexpr int64_t kRow = kClassesAtOnce + kColumnMultiple;  // no multiple of a page
  static constexpr int64_t kRowByRows = kRow;

 private:
  const std::unique_ptr<float[]> scores_, weight_;
};

template <>
class ClassOperands<BFloat16Pair> {
 public:
  explicit ClassOperands(int64_t rows)
      : by_classes_(new BFloat16Pair[static_cast<size_t>(rows * kRow)]),
        by_rows_(new BFloat16Pair[static_cast<size_t>((rows + 1) / 2 * kClassesAtOnce)]),
        weight_(new BFloat16Pair[kClassesAtOnce / 2 * kPanelColumns]) {}

  void copy(const Rows& scores) {
    kernels_.pack(scores, by_classes_.get(), kRow);
    kernels_.pack_columns(scores, by_rows_.get(), kRowByRows);
  }
  const BFloat16Pair* by_classes() const { return by_classes_.get(); }
  const BFloat16Pair* by_rows() const { return by_rows_.get(); }
  const BFloat16Pair* weight(const Rows& panel) const {
    pack_rows(panel, weight_.get());
    return weight_.get();
  }

  static constexpr int64_t kRow = kClassesAtOnce / 2 + kColumnMultiple;
  static constexpr int64_t kRowByRows = kClassesAtOnce;

 private:
  const PairKernels& kernels_ = instruction_set().matrix.of_pairs;
  const std::unique_ptr<BFloat16Pair[]> by_classes_, by_rows_, weight_;
};

void multiply(const Product<float>& product) {
  instruction_set().matrix.of_float.multiply(product);
}
void multiply(const Product<float, BFloat16Pair>& product) {
  instruction_set().matrix.of_pairs.multiply(product);
}

/// The tensors of a call; undefined gradients are not wanted.
struct ScoreGradients {
  const ScoreProduct& product;
  at::Tensor sums;       // [splits, n, E], or undefined
  at::Tensor of_weight;  // [V, E], or undefined
  bool is_first;         // of_weight is overwritten
};

/// The classes of one thread.
template <typename Operand>
class ScoreClasses {
 public:
  ScoreClasses(const ScoreGradients& call, const RowOperands<Operand>& x, int64_t split)
      : call_(call),
        x_(x),
        rows_(call.product.x.size(0)),
        width_(call.product.x.size(1)),
        operands_(rows_),
        sums_(call.sums.defined() ? call.sums.mutable_data_ptr<float>() + split * rows_ * width_
                                  : nullptr),
        of_weight_(call.of_weight.defined() ? call.of_weight.mutable_data_ptr<float>() : nullptr) {}

  void compute(int64_t begin, int64_t end) {
    for (auto first = begin; first < end; first += kClassesAtOnce) {
      const auto count = std::min(kClassesAtOnce, end - first);
      operands_.copy(rows_of(call_.product.of_scores, 0, rows_, {first, count}));
      for (int64_t column = 0; column < width_; column += kPanelColumns) {
        const Panel panel{column, std::min(kPanelColumns, width_ - column)};
        if (sums_ != nullptr) add_to_sums(first, count, panel, /*adds=*/first > begin);
        if (of_weight_ != nullptr) add_to_weight(first, count, panel);
      }
    }
  }

 private:
  void add_to_sums(int64_t first, int64_t count, const Panel& panel, bool adds) {
    const auto* b = operands_.weight(rows_of(call_.product.weight, first, count, panel));
    Product<float, Operand> product{rows_,
                                    panel.count,
                                    ceil_div(count, kDepthOf<Operand>),
                                    operands_.by_classes(),
                                    ClassOperands<Operand>::kRow,
                                    /*a_column=*/1,
                                    b,
                                    kPanelColumns,
                                    sums_ + panel.first,
                                    width_,
                                    adds};
    const bool reads_gradient = of_weight_ != nullptr && !call_.is_first;
    multiply_with(product, call_.of_weight, first, reads_gradient ? count : 0, panel);
  }

  void add_to_weight(int64_t first, int64_t count, const Panel& panel) {
    Product<float, Operand> product{count,
                                    panel.count,
                                    ceil_div(rows_, kDepthOf<Operand>),
                                    operands_.by_rows(),
                                    /*a_row=*/1,
                                    ClassOperands<Operand>::kRowByRows,
                                    x_.panel(panel),
                                    kPanelColumns,
                                    of_weight_ + first * width_ + panel.first,
                                    width_,
                                    !call_.is_first};
    const auto next = panel.first + panel.count;
    const Panel columns{next, std::min(panel.count, width_ - next)};
    multiply_with(product, call_.product.weight, first, columns.count > 0 ? count : 0, columns);
  }

  /// Multiplies, and prefetches `count` rows of a matrix meanwhile.
  void multiply_with(Product<float, Operand>& product, const at::Tensor& matrix, int64_t first,
                     int64_t count, const Panel& columns) {
    const auto size = count > 0 ? matrix.element_size() : 0;
    ahead_.clear();
    for (int64_t r = 0; r < count; ++r) {
      ahead_.push_back(static_cast<const char*>(matrix.const_data_ptr()) +
                       ((first + r) * width_ + columns.first) * size);
    }
    RowsAhead ahead{ahead_.data(), ahead_.data() + ahead_.size(), columns.count * size, 0};
    product.ahead = &ahead;
    multiply(product);
  }

  const ScoreGradients& call_;
  const RowOperands<Operand>& x_;
  const int64_t rows_, width_;
  ClassOperands<Operand> operands_;
  std::vector<const char*> ahead_;
  float* const sums_;
  float* const of_weight_;
};

/// The number of threads whose sums of the gradient of x fit, and that have enough classes.
int64_t splits_of(int64_t rows, int64_t columns, int64_t classes) {
  constexpr int64_t kFewestClasses = 8 * kClassesAtOnce;
  const auto bytes = rows * columns * static_cast<int64_t>(sizeof(float));
  const auto most = std::min(kSumBytes / bytes, classes / kFewestClasses);
  return std::clamp<int64_t>(most, 0, at::get_num_threads());
}

template <typename Operand>
void compute_splits(const ScoreGradients& call, int64_t splits) {
  const auto classes = call.product.weight.size(0);
  const auto of_split = round_up(ceil_div(classes, splits), kClassesAtOnce);
  const RowOperands<Operand> x(call.product.x);
  at::parallel_for(0, splits, 1, [&](int64_t begin, int64_t end) {
    for (auto split = begin; split < end; ++split) {
      ScoreClasses<Operand>(call, x, split)
          .compute(std::min(classes, split * of_split), std::min(classes, (split + 1) * of_split));
    }
  });
}

}  // namespace

bool takes_score_products(const at::Tensor& x, const at::Tensor& weight, int64_t rows) {
  constexpr int64_t kFewestRows = 64;  // which are worth the copies
  const auto& set = instruction_set();
  const auto dtype = x.scalar_type();
  const bool multiplies =
      dtype == at::kFloat ||
      (dtype == at::kBFloat16 && set.multiplies_bfloat16 && !set.has_tile_registers);
  return multiplies && set.vector_bytes >= 64 && blas_properties().foreign_mkl && is_plain(x) &&
         is_plain(weight) && x.is_contiguous() && weight.is_contiguous() && x.size(1) > 0 &&
         x.size(1) % kColumnMultiple == 0 && rows >= kFewestRows &&
         splits_of(rows, x.size(1), weight.size(0)) == at::get_num_threads();
}

void add_score_products(const ScoreProduct& product, const at::Tensor& of_x,
                        const at::Tensor& of_weight, bool is_first) {
  const auto rows = product.x.size(0), width = product.x.size(1);
  const auto splits = std::max<int64_t>(splits_of(rows, width, product.weight.size(0)), 1);
  ScoreGradients call{product, {}, of_weight, is_first};
  if (of_x.defined()) call.sums = empty_on_cpu({splits, rows, width}, at::kFloat);
  if (product.x.scalar_type() == at::kFloat) {
    compute_splits<float>(call, splits);
  } else {
    compute_splits<BFloat16Pair>(call, splits);
  }
  if (of_x.defined()) of_x.copy_(splits > 1 ? call.sums.sum(0) : call.sums[0]);
}

}  // namespace heed::detail
