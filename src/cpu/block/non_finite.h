#pragma once

#include <cmath>
#include <cstring>

#include "cpu/block/tile.h"

/// A product with hidden rows takes 0 times what they hold. That is 0 unless it is NaN or infinite,
/// which must not show where it is hidden: then the product is taken without such numbers, and they
/// are added where they are seen.

namespace heed::detail {

inline bool sees(const QueryRow& row, const ScoreFormat& format, int64_t key) {
  return key >= row.first_key && key < row.last_key &&
         (row.mask == nullptr || row.mask[key * format.mask_stride]) &&
         (row.key_documents == nullptr || row.key_documents[key] == row.document);
}

/// Element n of a sequence of which x has elements n / kDepthOf<Operand> * kDepthOf<Operand> on.
template <typename T, typename Operand>
T element_of(Operand x, int64_t n) {
  if constexpr (kDepthOf<Operand> == 1) {
    return x;
  } else {
    const uint32_t bits = n % 2 == 0 ? x << 16 : x & 0xffff0000U;
    float element;
    std::memcpy(&element, &bits, sizeof(element));
    return element;
  }
}

inline void clear_non_finite(BFloat16Pair& pair) {
  constexpr uint32_t kExponents[] = {0x7f80U, 0x7f800000U};
  if ((pair & kExponents[0]) == kExponents[0]) pair &= 0xffff0000U;
  if ((pair & kExponents[1]) == kExponents[1]) pair &= 0xffffU;
}
template <typename T>
void clear_non_finite(T& x) {
  if (!std::isfinite(x)) x = 0;
}

/// Whether some of the first `count` rows hold such numbers: then `matrix` becomes a copy with 0
/// instead, in `scratch`, in which it may already lie.
template <typename Operand>
bool take_non_finite(Matrix<Operand>& matrix, int64_t count, int64_t columns, Operand* scratch) {
  const auto from = matrix;
  if (matrix_kernels_of<Operand>().are_finite(from.data, from.row, count, columns)) return false;
  matrix = {scratch, from.data == scratch ? from.row : padded(columns)};
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t column = 0; column < matrix.row; ++column) {
      auto x = column < columns ? from.data[n * from.row + column] : Operand{0};
      clear_non_finite(x);
      scratch[n * matrix.row + column] = x;
    }
  }
  return true;
}

/// Adds to sums [.., sums_row] what take_non_finite took out of `count` rows: `row_of(n)` is one of
/// them, and visit(n, add) calls add(m, weight) for each of the sums that sees it.
template <typename T, typename RowOf, typename Visit>
void add_non_finite(int64_t count, const RowOf& row_of, const Visit& visit, T* sums,
                    int64_t sums_row) {
  std::vector<T> row(static_cast<size_t>(sums_row));
  for (int64_t n = 0; n < count; ++n) {
    matrix_kernels_of<T>().pack(row_of(n), row.data(), sums_row);
    if (matrix_kernels_of<T>().are_finite(row.data(), sums_row, 1, sums_row)) continue;
    visit(n, [&](int64_t m, T weight) {
      for (int64_t column = 0; column < sums_row; ++column) {
        const T x = row[static_cast<size_t>(column)];
        if (!std::isfinite(x)) sums[m * sums_row + column] += weight * x;
      }
    });
  }
}

}  // namespace heed::detail
