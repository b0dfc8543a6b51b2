// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/matrix.h"
#include "cpu/isa/simd.h"

/// The micro-tile of a matrix product: sums of `Rows` rows of a by `Vectors` vectors of columns
/// of b. Only for the sources of this folder. The general class keeps a vector for each row:
///
///   for k < count: load b[k]; for r < Rows: sums[r][v] += a[r][k] * b[k][v]
///
/// With BFMMLA (neon_bf16), a vector of sums is a square of 2 rows by 2 columns, and a step takes
/// two pairs along the depth, k and k + 1. ZIP interleaves two rows of b:
///
///   vector of a      a[2 i][k]   a[2 i][k + 1]   | a[2 i + 1][k]   a[2 i + 1][k + 1]
///   b, left          b[k][0]     b[k + 1][0]     | b[k][1]         b[k + 1][1]
///   b, right         b[k][2]     b[k + 1][2]     | b[k][3]         b[k + 1][3]
///   left sums        row 2 i: columns 0, 1       | row 2 i + 1: columns 0, 1
///
/// The multiply units bound it. See docs/kernels.md, "Block", "Speed limit", and "ARM".

namespace heed::detail::HEED_ISA {

/// Prefetches the next cache line of the rows, if there is one.
inline void prefetch_line(RowsAhead& ahead) {
  if (ahead.row == ahead.end) return;
  prefetch<kLine, 2>(*ahead.row + ahead.byte);
  ahead.byte += kLine;
  if (ahead.byte < ahead.row_bytes) return;
  ahead.byte = 0;
  ++ahead.row;
}

/// Calls visit(run) for the runs of a product's depth: the whole depth if it has none.
template <typename T, typename Operand, typename Visit>
inline void for_each_depth_run(const Product<T, Operand>& product, const Visit& visit) {
  if (product.runs == nullptr) return visit(DepthRun{0, product.depth});
  for (int64_t n = 0; n < product.run_count; ++n) visit(product.runs[n]);
}

template <typename T>
inline void add_product(T a, Vec<T> b, Vec<T>& sum) {
  sum += a * b;
}

inline void add_product(BFloat16Pair a, Vec<BFloat16Pair> b, Vec<float>& sum) {
  sum = add_pair_products(sum, a, b);
}

inline void add_product(ByteQuad a, Vec<ByteQuad> b, Vec<int32_t>& sum) {
  sum = add_byte_products(sum, a, b);
}

/// Whether there is BFMMLA: it multiplies 2 rows of 2 pairs by 2 columns of 2 pairs.
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
constexpr bool kMultipliesSquares = true;
#else
constexpr bool kMultipliesSquares = false;
#endif

template <typename T, typename Operand, int64_t Rows, int64_t Vectors,
          bool InSquares = (kMultipliesSquares && kDepthOf<Operand> == 2 && Rows > 1)>
class MicroTileSums {
 public:
  /// Adds the products of `count` operands along the depth. `a` and `b` are the first ones of the
  /// micro-tile's rows and columns.
  template <bool Prefetches>
  void add(const Product<T, Operand>& product, const Operand* a, const Operand* b, int64_t count,
           RowsAhead& ahead) {
    for (int64_t k = 0; k < count; ++k, a += product.a_column, b += product.b_row) {
      if constexpr (Prefetches) prefetch_line(ahead);
      Vec<Operand> b_row[Vectors];
#pragma GCC unroll 8
      for (int64_t v = 0; v < Vectors; ++v) b_row[v] = load(b + v * kLanes<T>);
#pragma GCC unroll 8
      for (int64_t r = 0; r < Rows; ++r) {
        const auto x = a[r * product.a_row];
#pragma GCC unroll 8
        for (int64_t v = 0; v < Vectors; ++v) add_product(x, b_row[v], sums_[r][v]);
      }
    }
  }

  Vec<T> operator()(int64_t row, int64_t vector) const { return sums_[row][vector]; }

 private:
  Vec<T> sums_[Rows][Vectors] = {};
};

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
/// Sums by BFMMLA. It rounds like two BFDOT after each other, so the sums are the same to the bit.
template <int64_t Rows, int64_t Vectors>
class MicroTileSums<float, BFloat16Pair, Rows, Vectors, true> {
 public:
  template <bool Prefetches>
  void add(const Product<float, BFloat16Pair>& product, const BFloat16Pair* a,
           const BFloat16Pair* b, int64_t count, RowsAhead& ahead) {
    if (product.a_column == 1) return add_by<true, Prefetches>(product, a, b, count, ahead);
    add_by<false, Prefetches>(product, a, b, count, ahead);
  }

  Vec<float> operator()(int64_t row, int64_t vector) const {
    const auto of = [&](int64_t half) {
      return bit_cast<float64x2_t>(sums_[row / 2][2 * vector + half]);
    };
    return bit_cast<Vec<float>>(row % 2 == 0 ? vzip1q_f64(of(0), of(1)) : vzip2q_f64(of(0), of(1)));
  }

 private:
  static constexpr int64_t kRowPairs = (Rows + 1) / 2;

  template <bool Contiguous, bool Prefetches>
  void add_by(const Product<float, BFloat16Pair>& product, const BFloat16Pair* a,
              const BFloat16Pair* b, int64_t count, RowsAhead& ahead) {
    for (; count >= 2; count -= 2, a += 2 * product.a_column, b += 2 * product.b_row) {
      if constexpr (Prefetches) {
        prefetch_line(ahead);
        prefetch_line(ahead);
      }
      add_squares<Contiguous, true>(product, a, b);
    }
    if (count == 1) add_squares<Contiguous, false>(product, a, b);
  }

  /// Adds the products of two pairs along the depth, or of one pair if not `Two`.
  template <bool Contiguous, bool Two>
  void add_squares(const Product<float, BFloat16Pair>& product, const BFloat16Pair* a,
                   const BFloat16Pair* b) {
    const auto pairs_of = [&](int64_t row) -> uint32x2_t {
      if (row == Rows) return vdup_n_u32(0);
      const auto* first = a + row * product.a_row;
      if constexpr (Contiguous && Two) return vld1_u32(first);
      return uint32x2_t{*first, Two ? first[product.a_column] : 0};
    };
    bfloat16x8_t of_rows[kRowPairs];
#pragma GCC unroll 4
    for (int64_t i = 0; i < kRowPairs; ++i) {
      of_rows[i] = bit_cast<bfloat16x8_t>(vcombine_u32(pairs_of(2 * i), pairs_of(2 * i + 1)));
    }
#pragma GCC unroll 4
    for (int64_t v = 0; v < Vectors; ++v) {
      const auto first = vld1q_u32(b + v * kLanes<float>);
      const auto second = Two ? vld1q_u32(b + product.b_row + v * kLanes<float>) : vdupq_n_u32(0);
      const auto left = bit_cast<bfloat16x8_t>(vzip1q_u32(first, second));
      const auto right = bit_cast<bfloat16x8_t>(vzip2q_u32(first, second));
#pragma GCC unroll 4
      for (int64_t i = 0; i < kRowPairs; ++i) {
        sums_[i][2 * v] = vbfmmlaq_f32(sums_[i][2 * v], of_rows[i], left);
        sums_[i][2 * v + 1] = vbfmmlaq_f32(sums_[i][2 * v + 1], of_rows[i], right);
      }
    }
  }

  Vec<float> sums_[kRowPairs][2 * Vectors] = {};  // lane 2 r + c: row r and column c of a square
};
#endif

}  // namespace heed::detail::HEED_ISA
