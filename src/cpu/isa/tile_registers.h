// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/matrix.h"
#include "cpu/isa/micro_tile_sums.h"
#include "cpu/isa/simd.h"

/// Products of bfloat16 pairs in AMX's tile registers, each of which holds 16 rows of 64 bytes.
/// Only for the sources of this folder.
///
///   for each 32 columns of b:                                     # multiply_columns
///     for each 32 rows of a:                                      # compute_square
///       4 sums [16, 16] = 0                                       # registers 0 to 3
///       for 16 pairs of the depth, or of its runs, at a time:     # add_step
///         sums += a [2 x 16 rows, 16 pairs] b [16 pairs, 2 x 16 columns]
///       c = factor * sums, or c += factor * sums                  # by vectors, through memory
///
///   register of a      16 rows of 16 pairs: rows of pairs, a_column = 1
///   register of b      16 rows of 16 columns, as PairKernels packs them: b[k][column]
///
/// Fewer rows of a, and fewer than 16 pairs at the end of a run, are copied with zeros behind them.
/// Each step loads 4 registers and multiplies 4 times, which takes twice as long: the multiply
/// units bound it. A product of few pairs takes longer to write its sums than to compute them.

#ifdef __AMX_BF16__

namespace heed::detail::HEED_ISA {

constexpr int64_t kSide = 16;  // rows of a register, and its columns of 4 bytes

/// The layout of tile registers, which LDTILECFG reads.
struct TileConfiguration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {kSide, kSide, kSide, kSide, kSide, kSide, kSide, kSide};
};

/// One worker's registers while the object exists.
class TileRegisters {
 public:
  TileRegisters() {
    alignas(64) static constexpr TileConfiguration kWhole;
    _tile_loadconfig(&kWhole);
  }
  ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

/// Rows of an operand, `row` pairs apart.
struct PairRows {
  const BFloat16Pair* data;
  int64_t row;
};

/// to [to_rows, to_columns] = the elements of `from` in these rows and columns; 0 elsewhere.
inline PairRows padded_copy(const PairRows& from, const DepthRun& rows, const DepthRun& columns,
                            BFloat16Pair* to, int64_t to_rows, int64_t to_columns) {
  const auto has = [](const DepthRun& run, int64_t n) {
    return n >= run.first && n < run.first + run.count;
  };
  for (int64_t r = 0; r < to_rows; ++r) {
    for (int64_t i = 0; i < to_columns; ++i) {
      const bool is_copied = has(rows, r) && has(columns, i);
      to[r * to_columns + i] = is_copied ? from.data[r * from.row + i] : 0;
    }
  }
  return {to, to_columns};
}

/// sums += a b, over 16 pairs of the depth.
template <int64_t RowSides, int64_t ColumnSides>
inline void add_step(const PairRows& a, const PairRows& b) {
  constexpr int64_t kBytes = sizeof(BFloat16Pair);
  _tile_loadd(6, b.data, b.row * kBytes);
  if constexpr (ColumnSides == 2) _tile_loadd(7, b.data + kSide, b.row * kBytes);
  _tile_loadd(4, a.data, a.row * kBytes);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (ColumnSides == 2) _tile_dpbf16ps(1, 4, 7);
  if constexpr (RowSides == 2) {
    _tile_loadd(5, a.data + kSide * a.row, a.row * kBytes);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (ColumnSides == 2) _tile_dpbf16ps(3, 5, 7);
  }
}

/// The compiler does not know that loads of registers read memory.
inline void finish_writes() { __asm__ volatile("" ::: "memory"); }

/// Adds the products of one run. `rows` are those of a that exist. Steps begin at multiples of 16
/// pairs, also where the run does not: so a sum is the same to the bit, whichever pairs of zeros
/// runs leave out.
template <int64_t RowSides, int64_t ColumnSides>
inline void add_run(const Product<float, BFloat16Pair>& product, int64_t row, int64_t rows,
                    int64_t column, const DepthRun& run) {
  constexpr int64_t kRows = RowSides * kSide, kColumns = ColumnSides * kSide;
  alignas(64) BFloat16Pair a_copy[kRows * kSide];
  alignas(64) BFloat16Pair b_copy[kSide * kColumns];
  const int64_t end = run.first + run.count;
  for (int64_t k = run.first / kSide * kSide; k < end; k += kSide) {
    const int64_t first = run.first > k ? run.first - k : 0;
    const int64_t last = end - k < kSide ? end - k : kSide;
    const DepthRun pairs = {first, last - first};
    PairRows a = {product.a + row * product.a_row + k, product.a_row};
    PairRows b = {product.b + k * product.b_row + column, product.b_row};
    if (rows < kRows || pairs.count < kSide) {
      a = padded_copy(a, {0, rows}, pairs, a_copy, kRows, kSide);
    }
    if (pairs.count < kSide) b = padded_copy(b, pairs, {0, kColumns}, b_copy, kSide, kColumns);
    finish_writes();
    add_step<RowSides, ColumnSides>(a, b);
    if (product.ahead != nullptr) {
      constexpr int64_t kLines = 8;  // as many as memory delivers during a step
      for (int64_t line = 0; line < kLines; ++line) prefetch_line(*product.ahead);
    }
  }
}

/// Computes up to 16 * RowSides rows by 16 * ColumnSides columns of c.
/// write(product, row, column, sums) writes a row of them.
template <int64_t RowSides, int64_t ColumnSides, typename Write>
inline void compute_square(const Product<float, BFloat16Pair>& product, int64_t row, int64_t rows,
                           int64_t column, const Write& write) {
  _tile_zero(0);
  if constexpr (ColumnSides == 2) _tile_zero(1);
  if constexpr (RowSides == 2) _tile_zero(2);
  if constexpr (RowSides == 2 && ColumnSides == 2) _tile_zero(3);
  for_each_depth_run(product, [&](const DepthRun& run) {
    add_run<RowSides, ColumnSides>(product, row, rows, column, run);
  });
  constexpr int64_t kColumns = ColumnSides * kSide;
  alignas(64) float sums[RowSides * kSide * kColumns];
  _tile_stored(0, sums, kColumns * sizeof(float));
  if constexpr (ColumnSides == 2) _tile_stored(1, sums + kSide, kColumns * sizeof(float));
  if constexpr (RowSides == 2) {
    _tile_stored(2, sums + kSide * kColumns, kColumns * sizeof(float));
  }
  if constexpr (RowSides == 2 && ColumnSides == 2) {
    _tile_stored(3, sums + kSide * kColumns + kSide, kColumns * sizeof(float));
  }
  for (int64_t r = 0; r < rows; ++r) write(product, row + r, column, sums + r * kColumns);
}

/// c = a b for a product whose rows of a are contiguous.
template <int64_t ColumnSides, typename Write>
inline void multiply_columns(const Product<float, BFloat16Pair>& product, int64_t column,
                             const Write& write) {
  int64_t row = 0;
  for (; product.rows - row > kSide; row += 2 * kSide) {
    const int64_t rows = product.rows - row < 2 * kSide ? product.rows - row : 2 * kSide;
    compute_square<2, ColumnSides>(product, row, rows, column, write);
  }
  if (row < product.rows) {
    compute_square<1, ColumnSides>(product, row, product.rows - row, column, write);
  }
}

}  // namespace heed::detail::HEED_ISA

#endif
