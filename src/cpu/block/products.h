// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cmath>
#include <cstring>

#include "cpu/block/tile.h"

/// Products of a tile:
///
///   tile [rows, keys]    = factor * a [rows, D] b [D, keys]           multiply_to_tile
///   sums [rows, columns] += tile [rows, keys] keys [keys, columns]    add_over_keys
///
/// The weight of a hidden key is 0. 0 times its value is NaN if the value is NaN or infinite,
/// which must not show in rows that do not see the key:
///
///   if something is hidden and some values are NaN or infinite:
///     replace these by 0 and multiply                                 take_non_finite
///     for each of them, for each row that sees it: sums += weight * value     add_non_finite
///
/// The multiply units bound products. docs/kernels.md, Block ("What is hidden has no influence").

namespace heed::detail {

inline bool sees(const QueryRow& row, int64_t key) {
  const auto has = [](const uint64_t* bits, int64_t bit) {
    return (bits[bit / kKeysOfBits] >> (bit % kKeysOfBits) & 1U) != 0;
  };
  const bool in_window = row.global == nullptr || has(row.global, key) ||
                         (key >= row.window_first && key < row.window_last);
  return key >= row.first_key && key < row.last_key && in_window &&
         (row.mask == nullptr || has(row.mask, key - row.mask_key)) &&
         (row.key_documents == nullptr || row.key_documents[key] == row.document);
}

/// Element n of a sequence, from the operand x that holds it: x itself, or one half of a pair.
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

/// Returns whether some of the first `count` rows hold NaN or infinite numbers. If so, `matrix`
/// becomes a copy in `scratch` with 0 in their place. It may already lie in `scratch`.
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

/// Adds the numbers that take_non_finite replaced in rows `row_of(n)`, n < count, to `sums`
/// [.., sums_row]: visit(n, add) calls add(m, weight) for each row m of `sums` that sees row n.
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

/// to [rows, tile_stride] = factor * a [rows, depth] b [depth, columns], in the cells that are
/// computed, while the rows `ahead` are prefetched. `lane_maxima`, if not null, gets the maxima of
/// the strips that hide nothing (see Product).
template <typename T, typename Operand>
void multiply_to_tile(Tile& tile, const Matrix<Operand>& a, int64_t depth, const Operand* b,
                      double factor, int64_t stride, T* to, RowsAhead* ahead = nullptr,
                      T* lane_maxima = nullptr) {
  tile.for_each_run([&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    Product<T, Operand> product = {rows,
                                   padded(columns),
                                   depth,
                                   a.data + row * a.row,
                                   a.row,
                                   1,
                                   b + column,
                                   stride,
                                   to + row * stride + column,
                                   stride,
                                   /*accumulate=*/false};
    product.factor = product_factor<T, Operand>(factor);
    product.ahead = ahead;
    if (lane_maxima != nullptr && tile.has_unhidden(row, rows)) {
      product.lane_maxima = lane_maxima + row * kColumnMultiple;
    }
    matrix_kernels_of<Operand>().multiply(product);
  });
}

/// Keys or values as operand b of a product whose depth is the keys.
template <typename Operand>
struct KeyRows {
  const Problem& problem;
  const at::Tensor& tensor;  // the problem's key or value
  Matrix<Operand> matrix;
  bool took_some;  // result of take_non_finite
};

/// Makes KeyRows of `keys`; `scratch` has room for the packed rows.
template <typename Operand>
KeyRows<Operand> key_rows(const Problem& problem, const at::Tensor& tensor, const RowBlock& block,
                          KeyRange keys, bool may_be_hidden, Operand* scratch) {
  auto matrix = key_matrix(problem, tensor, block, keys, scratch);
  const bool took_some =
      may_be_hidden &&
      take_non_finite(matrix, operands<Operand>(keys.last - keys.first), tensor.size(3), scratch);
  return {problem, tensor, matrix, took_some};
}

/// sums [rows, columns padded] += tile times keys or values. A sum over `at_a_time` keys is
/// complete before it is added. The rows of the tile are `stride` operands apart.
template <typename T, typename Operand>
void add_over_keys(Tile& tile, const Operand* of_tile, int64_t stride, const KeyRows<Operand>& keys,
                   int64_t at_a_time, T* sums) {
  const auto& block = tile.block();
  const auto columns = padded(keys.tensor.size(3));
  tile.for_each_sum_over_columns(
      at_a_time, [&](int64_t row, int64_t rows, const std::vector<DepthRun>& column_runs) {
        const auto runs = operand_runs<Operand>(column_runs);
        matrix_kernels_of<Operand>().multiply(
            {rows, columns, operands<Operand>(tile.width()), of_tile + row * stride, stride, 1,
             keys.matrix.data, keys.matrix.row, sums + row * columns, columns,
             /*accumulate=*/true, runs.data(), static_cast<int64_t>(runs.size())});
      });
  if (!keys.took_some) return;
  add_non_finite(
      tile.width(),
      [&](int64_t n) {
        return key_row(keys.problem, keys.tensor, block.batch, block.group, tile.keys().first + n);
      },
      [&](int64_t n, const auto& add) {
        for (int64_t r = 0; r < block.rows(); ++r) {
          if (!sees(tile.row(r), tile.keys().first + n)) continue;
          add(r, element_of<T>(of_tile[r * stride + n / kDepthOf<Operand>], n));
        }
      },
      sums, columns);
}

}  // namespace heed::detail
