// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <stdint.h>

#include "core/element_types.h"

namespace heed::detail {

/// Rows of a tensor: row r begins at `data` + r * row_stride, and its elements are column_stride
/// apart.
struct Rows {
  void* data;
  ElementType type;
  int64_t count, columns;
  int64_t row_stride, column_stride;
};

/// Two bfloat16, the first one in the low bits. A processor with bfloat16 products multiplies such
/// a pair by another pair and adds both products to a float.
using BFloat16Pair = uint32_t;

/// Four bytes, the first one in the low bits. A processor with products of bytes multiplies four
/// that are signed, from -127 to 127, by four that are not, from 0 to 255, and adds the products to
/// an integer.
using ByteQuad = int32_t;

/// Elements along a product's depth that one operand has.
template <typename Operand>
constexpr int64_t kDepthOf = 1;
template <>
inline constexpr int64_t kDepthOf<BFloat16Pair> = 2;
template <>
inline constexpr int64_t kDepthOf<ByteQuad> = 4;

/// Operands [first, first + count) along a product's depth.
struct DepthRun {
  int64_t first, count;
};

inline bool operator==(DepthRun a, DepthRun b) { return a.first == b.first && a.count == b.count; }

/// Rows that will be read after a product. The product prefetches one of their cache lines with
/// each step along its depth, so that memory and multiply units work at the same time.
struct RowsAhead {
  const char* const* row;
  const char* const* end;
  int64_t row_bytes;
  int64_t byte;  ///< offset in *row of the line to prefetch next
};

/// c [rows, columns] = a [rows, depth] b [depth, columns]. Rows of b and c are contiguous; columns
/// is a multiple of `kColumnMultiple`. Depth is counted in operands. Sums and results are of T.
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
  // Runs of the depth outside of which a is taken to be 0, in order; null: the whole depth.
  const DepthRun* runs = nullptr;
  int64_t run_count = 0;
  T factor = 1;                // c = factor * a b, or c += factor * a b
  RowsAhead* ahead = nullptr;  // advanced past the lines that are prefetched; or null
  // [rows, kColumnMultiple]: the maximum of a row's results in each lane of a vector, which the
  // product updates; NaN is ignored. Or null.
  T* lane_maxima = nullptr;
};

/// A multiple of the number of lanes in every instruction set. Columns of packed matrices are
/// padded to a multiple of it.
constexpr int64_t kColumnMultiple = 16;

/// The rows of a micro-tile. A product of a multiple of them has no smaller micro-tiles.
constexpr int64_t kMicroRows = 6;

/// Kernels for matrices of `T`, which is double for tensors of double, else float.
template <typename T>
struct MatrixKernelsOf {
  /// to [count, to_row] = from, then zeros in each row.
  void (*pack)(const Rows& from, T* to, int64_t to_row);
  /// to [columns, to_row] = factor * the transposed `from`. Zeros follow in each row of `to`, up
  /// to a multiple of kColumnMultiple, but not beyond to_row.
  void (*pack_transposed)(const Rows& from, T factor, T* to, int64_t to_row);
  /// to = factor * factors[row] * from; factors may be null.
  void (*unpack)(const T* from, int64_t from_row, T factor, const T* factors, const Rows& to);
  /// to = factor * factors[row] * from - unpacked: the rounding error that `unpack` made when it
  /// wrote `unpacked`.
  void (*unpack_rest)(const T* from, int64_t from_row, T factor, const T* factors,
                      const Rows& unpacked, const Rows& to);
  void (*multiply)(const Product<T>& product);
  /// to[r] = dot product of the rows r of a and b, [count, columns] each.
  void (*dot_rows)(const T* a, int64_t a_row, const T* b, int64_t b_row, int64_t count,
                   int64_t columns, T* to);
  void (*add)(const T* from, int64_t count, T* to);  ///< to += from
  bool (*are_finite)(const T* from, int64_t from_row, int64_t count, int64_t columns);
};

/// Kernels for matrices of bfloat16 pairs; null unless InstructionSet::multiplies_bfloat16. The
/// elements of a pair are neighbors along the depth of a product. If the number of elements is
/// odd, the second one of the last pair is 0.
struct PairKernels {
  /// to [count, to_row]: pairs of neighbors in a row, then zeros.
  void (*pack)(const Rows& from, BFloat16Pair* to, int64_t to_row);
  /// to [columns / 2 rounded up, to_row]: pairs of neighbors in a row, transposed. Zeros follow as
  /// in MatrixKernelsOf::pack_transposed.
  void (*pack_transposed)(const Rows& from, BFloat16Pair* to, int64_t to_row);
  /// to [count / 2 rounded up, to_row]: pairs of neighbors in a column, then zeros in each row.
  void (*pack_columns)(const Rows& from, BFloat16Pair* to, int64_t to_row);
  void (*multiply)(const Product<float, BFloat16Pair>& product);
  bool (*are_finite)(const BFloat16Pair* from, int64_t from_row, int64_t count, int64_t columns);
};

/// Kernels for matrices of bytes; null unless InstructionSet::multiplies_bytes.
struct QuadKernels {
  /// The numbers of `a` are signed, and those of `b` are not.
  void (*multiply)(const Product<int32_t, ByteQuad>& product);
};

struct MatrixKernels {
  MatrixKernelsOf<float> of_float;
  MatrixKernelsOf<double> of_double;
  PairKernels of_pairs;
  QuadKernels of_quads;
  /// to = scales[row] * from. Rows of `from` are from_row apart; rows of `to` are contiguous.
  void (*widen)(const int8_t* from, int64_t from_row, const float* scales, const Rows& to);
};

}  // namespace heed::detail
