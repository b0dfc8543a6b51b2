#pragma once

#include "cpu/isa/matrix.h"
#include "cpu/isa/simd.h"

/// Sums of a matrix product in registers: those of some rows of a and some vectors of columns of b.
/// Only for the sources of this folder.

namespace heed::detail::HEED_ISA {

inline void prefetch_line(RowsAhead& ahead) {
  if (ahead.row == ahead.end) return;
  prefetch<kLine, 2>(*ahead.row + ahead.byte);
  ahead.byte += kLine;
  if (ahead.byte < ahead.row_bytes) return;
  ahead.byte = 0;
  ++ahead.row;
}

template <typename T>
inline void add_product(T a, Vec<T> b, Vec<T>& sum) {
  sum += a * b;
}

inline void add_product(BFloat16Pair a, Vec<BFloat16Pair> b, Vec<float>& sum) {
  sum = add_pair_products(sum, a, b);
}

/// Whether a processor's instruction multiplies 2 rows by 2 columns, 2 pairs of each.
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
constexpr bool kMultipliesSquares = true;
#else
constexpr bool kMultipliesSquares = false;
#endif

template <typename T, typename Operand, int64_t Rows, int64_t Vectors,
          bool InSquares = (kMultipliesSquares && kDepthOf<Operand> == 2 && Rows > 1)>
class TileSums {
 public:
  /// Adds the products of a part of the depth, where the rows of a and the columns of b begin.
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
/// By BFMMLA, which rounds as two BFDOT after each other do: the sums are the same to the bit.
template <int64_t Rows, int64_t Vectors>
class TileSums<float, BFloat16Pair, Rows, Vectors, true> {
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

  /// Two pairs along the depth, or one and zeros.
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

  Vec<float> sums_[kRowPairs][2 * Vectors] = {};  // lane 2 r + c: of row r and column c of both
};
#endif

}  // namespace heed::detail::HEED_ISA
