#pragma once

#include <stdint.h>

#include "core/element_types.h"

namespace heed::detail {

/// Rows of a tensor: row r begins at `data` + r * row_stride, its elements column_stride apart.
struct Rows {
  void* data;
  ElementType type;
  int64_t count, columns;
  int64_t row_stride, column_stride;
};

/// Two bfloat16, the first one in the low bits. A processor with bfloat16 products multiplies such
/// a pair by another pair and adds both products to a float.
using BFloat16Pair = uint32_t;

/// How many elements along a product's depth an operand has.
template <typename Operand>
constexpr int64_t kDepthOf = 1;
template <>
inline constexpr int64_t kDepthOf<BFloat16Pair> = 2;

/// A part of a product's depth, in operands.
struct DepthRun {
  int64_t first, count;
};

inline bool operator==(DepthRun a, DepthRun b) { return a.first == b.first && a.count == b.count; }

/// Rows that are read after a product, which prefetches one of their cache lines with each step
/// along its depth: memory and multipliers then work at the same time.
struct RowsAhead {
  const char* const* row;
  const char* const* end;
  int64_t row_bytes;
  int64_t byte;  ///< of the row, which is prefetched next
};

/// c [rows, columns] = a [rows, depth] b [depth, columns]. Rows of b and c are contiguous; columns
/// is a multiple of `kColumnMultiple`. Depth is counted in operands.
template <typename T, typename Operand = T>
struct Product {
  int64_t rows, columns, depth;
  const Operand* a;
  int64_t a_row, a_column;
  const Operand* b;
  int64_t b_row;
  T* c;
  int64_t c_row;
  bool accumulate;  // c += a b
  // Those parts of the depth that are not 0 in a, in order; null: all of it.
  const DepthRun* runs = nullptr;
  int64_t run_count = 0;
  T factor = 1;                // on a b
  RowsAhead* ahead = nullptr;  // advanced by what is prefetched; or null
  // [rows, kColumnMultiple]: updated by the largest results of a row in each lane of a vector, but
  // for NaN; or null.
  T* lane_maxima = nullptr;
};

/// A multiple of the vectors of every instruction set.
constexpr int64_t kColumnMultiple = 16;

/// Matrices have type `T`: double for tensors of double, else float.
template <typename T>
struct MatrixKernelsOf {
  /// to [count, to_row] = from, zeros beyond its columns.
  void (*pack)(const Rows& from, T* to, int64_t to_row);
  /// to [columns, to_row] = factor * from transposed; zeros beyond from's rows, to a multiple of
  /// kColumnMultiple or the end of to's.
  void (*pack_transposed)(const Rows& from, T factor, T* to, int64_t to_row);
  /// to = factor * factors[row] * from; factors may be null.
  void (*unpack)(const T* from, int64_t from_row, T factor, const T* factors, const Rows& to);
  /// to = the rounding error that `unpack` made when it wrote `unpacked`.
  void (*unpack_rest)(const T* from, int64_t from_row, T factor, const T* factors,
                      const Rows& unpacked, const Rows& to);
  void (*multiply)(const Product<T>& product);
  /// to[r] = dot product of the rows r of a and b, [count, columns] each.
  void (*dot_rows)(const T* a, int64_t a_row, const T* b, int64_t b_row, int64_t count,
                   int64_t columns, T* to);
  void (*add)(const T* from, int64_t count, T* to);  ///< to += from
  bool (*are_finite)(const T* from, int64_t from_row, int64_t count, int64_t columns);
};

/// Kernels for bfloat16, if InstructionSet::multiplies_bfloat16. Pairs are along the depth of a
/// product; a pair without a second element has 0 there.
struct PairKernels {
  /// to [count, to_row]: pairs of neighbors in a row, zeros beyond them.
  void (*pack)(const Rows& from, BFloat16Pair* to, int64_t to_row);
  /// to [half of columns, to_row] = those pairs transposed; zeros beyond from's rows, as above.
  void (*pack_transposed)(const Rows& from, BFloat16Pair* to, int64_t to_row);
  /// to [half of count, to_row]: pairs of neighbors in a column, zeros beyond them.
  void (*pack_columns)(const Rows& from, BFloat16Pair* to, int64_t to_row);
  void (*multiply)(const Product<float, BFloat16Pair>& product);
  bool (*are_finite)(const BFloat16Pair* from, int64_t from_row, int64_t count, int64_t columns);
};

struct MatrixKernels {
  MatrixKernelsOf<float> of_float;
  MatrixKernelsOf<double> of_double;
  PairKernels of_pairs;
  /// to = scales[row] * from, whose rows are from_row apart; the columns of `to` are contiguous.
  void (*widen)(const int8_t* from, int64_t from_row, const float* scales, const Rows& to);
};

}  // namespace heed::detail
