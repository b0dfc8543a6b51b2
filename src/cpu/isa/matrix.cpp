// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/isa/matrix.h"

#include "core/ceil_div.h"
#include "cpu/isa/instruction_set.h"
#include "cpu/isa/micro_tile_sums.h"
#include "cpu/isa/simd.h"
#include "cpu/isa/tile_registers.h"

// Matrix products, c [rows, columns] = a [rows, depth] b [depth, columns], and the packing of
// their operands.
//
//   for each panel of b, 4 or 2 vectors wide:                          # multiply_panels
//     for each 6 rows of a:                                            # multiply_panel
//       sums [6, panel] = 0, in registers                              # MicroTileSums
//       for k in the depth, or in its runs:
//         for r < 6: sums[r] += a[r][k] * b[k][panel]                  # and prefetch a line
//       c = factor * sums, or c += factor * sums                       # write_sums
//
// A panel is a range of columns of b, whose rows lie b_row apart. An operand is a number or a pair
// of bfloat16, neighbors along the depth. Pairs halve the depth; the loops are the same. Pairs of
// a matrix x [2 rows, 4 columns] are packed as
//
//   pack            x00|x01  x02|x03        pack_transposed    x00|x01  x10|x11
//                   x10|x11  x12|x13                           x02|x03  x12|x13
//   pack_columns    x00|x10  x01|x11  x02|x12  x03|x13
//
// The multiply units bound a product: with 32 registers, a step along the depth has 24
// multiply-adds for the loads of 4 vectors of b and 6 operands of a. See docs/kernels.md, "Block",
// "Speed limit".

namespace heed::detail::HEED_ISA {

namespace {

// The vectors in a row of a micro-tile. Its 6 rows take 24 of 32 registers, or 12 of 16. The others
// hold a row of b's panel and an operand of a.
constexpr int64_t kMicroVectors = kRegisters == 32 ? 4 : 2;

/// Writes the sums of a micro-tile, sums(row, vector), to c. `row` is the number of its first row
/// in the product, and `c` the place of its first element.
template <int64_t MicroRows, int64_t MicroVectors, typename T, typename Operand, typename Sums>
inline void write_sums(const Sums& sums, const Product<T, Operand>& product, int64_t row, T* c) {
  const bool scaled = product.factor != 1;
#pragma GCC unroll 8
  for (int64_t r = 0; r < MicroRows; ++r, c += product.c_row) {
    Vec<T> vectors[MicroVectors];
#pragma GCC unroll 8
    for (int64_t v = 0; v < MicroVectors; ++v) {
      T* to = c + v * kLanes<T>;
      const auto sum = scaled ? sums(r, v) * product.factor : sums(r, v);
      // Sums do not start with c: each term would be rounded to the precision of a long sum.
      vectors[v] = product.accumulate ? load(to) + sum : sum;
      store(to, vectors[v]);
    }
    if (product.lane_maxima == nullptr) continue;
    T* maxima = product.lane_maxima + (row + r) * kColumnMultiple;
    auto lanes = load(maxima);
#pragma GCC unroll 8
    for (int64_t v = 0; v < MicroVectors; ++v) lanes = larger<T>(lanes, vectors[v]);
    store(maxima, lanes);
  }
}

template <typename T, typename Operand, int64_t MicroRows, int64_t MicroVectors, bool Prefetches>
void multiply_micro_tile(const Product<T, Operand>& product, int64_t row, int64_t column) {
  RowsAhead ahead{};  // NOLINT(misc-const-correctness): it changes in the other case
  if constexpr (Prefetches) ahead = *product.ahead;
  MicroTileSums<T, Operand, MicroRows, MicroVectors> sums;
  for_each_depth_run(product, [&](const DepthRun& run) {
    sums.template add<Prefetches>(product,
                                  product.a + row * product.a_row + run.first * product.a_column,
                                  product.b + column + run.first * product.b_row, run.count, ahead);
  });
  if constexpr (Prefetches) *product.ahead = ahead;
  write_sums<MicroRows, MicroVectors>(sums, product, row, product.c + row * product.c_row + column);
}

template <typename T, typename Operand, bool Prefetches, int64_t MicroVectors>
void multiply_panel(const Product<T, Operand>& product, int64_t column) {
  int64_t row = 0;
  for (; row + kMicroRows <= product.rows; row += kMicroRows) {
    multiply_micro_tile<T, Operand, kMicroRows, MicroVectors, Prefetches>(product, row, column);
  }
  static_assert(kMicroRows == 6);
  switch (product.rows - row) {
    case 1:
      return multiply_micro_tile<T, Operand, 1, MicroVectors, Prefetches>(product, row, column);
    case 2:
      return multiply_micro_tile<T, Operand, 2, MicroVectors, Prefetches>(product, row, column);
    case 3:
      return multiply_micro_tile<T, Operand, 3, MicroVectors, Prefetches>(product, row, column);
    case 4:
      return multiply_micro_tile<T, Operand, 4, MicroVectors, Prefetches>(product, row, column);
    case 5:
      return multiply_micro_tile<T, Operand, 5, MicroVectors, Prefetches>(product, row, column);
  }
}

template <typename T, typename Operand, bool Prefetches>
void multiply_panels(const Product<T, Operand>& product) {
  constexpr int64_t kPanel = kMicroVectors * kLanes<T>;
  int64_t column = 0;
  for (; column + kPanel <= product.columns; column += kPanel) {
    multiply_panel<T, Operand, Prefetches, kMicroVectors>(product, column);
  }
  for (; column + 2 * kLanes<T> <= product.columns; column += 2 * kLanes<T>) {
    multiply_panel<T, Operand, Prefetches, 2>(product, column);
  }
  for (; column < product.columns; column += kLanes<T>)
    multiply_panel<T, Operand, Prefetches, 1>(product, column);
}

template <typename T, typename Operand = T>
void multiply(const Product<T, Operand>& product) {
  if (product.ahead == nullptr) return multiply_panels<T, Operand, false>(product);
  multiply_panels<T, Operand, true>(product);
}

/// Whether `load` and `store` convert between a vector of T and as many neighboring Elements.
template <typename T, typename Element>
constexpr bool kHasVectors = sizeof(Element) == sizeof(T) ||
                             (sizeof(T) == 4 && sizeof(Element) == 2);

template <typename T, typename Element>
void pack_as(const Rows& from, T* to, int64_t to_row) {
  for (int64_t row = 0; row < from.count; ++row, to += to_row) {
    const auto* source = static_cast<const Element*>(from.data) + row * from.row_stride;
    int64_t column = 0;
    if constexpr (kHasVectors<T, Element>) {
      for (; from.column_stride == 1 && column + kLanes<T> <= from.columns; column += kLanes<T>) {
        store(to + column, load(source + column));
      }
    }
    for (; column < from.columns; ++column) {
      to[column] = static_cast<T>(widen(source[column * from.column_stride]));
    }
    for (; column < to_row; ++column) to[column] = 0;
  }
}

/// Transposes a square of kLanes rows and columns. Each step swaps squares of twice the size.
template <typename T, int64_t Distance>
inline void transpose(Vec<T> (&rows)[kLanes<T>]) {
#pragma GCC unroll 16
  for (int64_t row = 0; row < kLanes<T>; ++row) {
    if ((row & Distance) == 0) swap_blocks<T, Distance>(rows[row], rows[row + Distance]);
  }
  if constexpr (Distance * 2 < kLanes<T>) transpose<T, Distance * 2>(rows);
}

/// Loads kLanes rows of kLanes numbers and writes the transposed square.
template <typename T, typename LoadRow>
inline void pack_square(const LoadRow& load_row, T* to, int64_t to_row) {
  Vec<T> square[kLanes<T>];
#pragma GCC unroll 16
  for (int64_t row = 0; row < kLanes<T>; ++row) square[row] = load_row(row);
  transpose<T, 1>(square);
#pragma GCC unroll 16
  for (int64_t row = 0; row < kLanes<T>; ++row) store(to + row * to_row, square[row]);
}

/// The end of the zeros that follow the `count` numbers of a packed row.
inline int64_t padded_end(int64_t count, int64_t to_row) {
  const int64_t end = round_up(count, kColumnMultiple);
  return end < to_row ? end : to_row;
}

template <typename T, typename Element>
void pack_transposed_as(const Rows& from, T factor, T* to, int64_t to_row) {
  const auto* source = static_cast<const Element*>(from.data);
  // Rows and columns that are transposed in whole squares.
  const bool in_squares = kHasVectors<T, Element> && from.column_stride == 1;
  const int64_t squares = in_squares ? from.count / kLanes<T> * kLanes<T> : 0;
  const int64_t square_columns = in_squares ? from.columns / kLanes<T> * kLanes<T> : 0;
  if constexpr (kHasVectors<T, Element>) {
    for (int64_t column = 0; column < square_columns; column += kLanes<T>) {
      for (int64_t row = 0; row < squares; row += kLanes<T>) {
        const auto load_row = [&](int64_t r) {
          return load(source + (row + r) * from.row_stride + column) * factor;
        };
        pack_square<T>(load_row, to + column * to_row + row, to_row);
      }
    }
  }
  for (int64_t column = 0; column < from.columns; ++column) {
    const auto* elements = source + column * from.column_stride;
    T* line = to + column * to_row;
    int64_t row = column < square_columns ? squares : 0;
    for (; row < from.count; ++row) {
      line[row] = static_cast<T>(widen(elements[row * from.row_stride])) * factor;
    }
    for (; row < padded_end(from.count, to_row); ++row) line[row] = 0;
  }
}

template <typename T, typename Element>
void unpack_as(const T* from, int64_t from_row, T factor, const T* factors, const Rows& to) {
  for (int64_t row = 0; row < to.count; ++row, from += from_row) {
    auto* target = static_cast<Element*>(to.data) + row * to.row_stride;
    const T f = factors == nullptr ? factor : factor * factors[row];
    int64_t column = 0;
    if constexpr (kHasVectors<T, Element>) {
      for (; to.column_stride == 1 && column + kLanes<T> <= to.columns; column += kLanes<T>) {
        store(target + column, load(from + column) * f);
      }
    }
    for (; column < to.columns; ++column) {
      narrow(from[column] * f, target + column * to.column_stride);
    }
  }
}

template <typename T, typename Element>
void unpack_rest_as(const T* from, int64_t from_row, T factor, const T* factors,
                    const Rows& unpacked, const Rows& to) {
  const bool in_vectors = unpacked.column_stride == 1 && to.column_stride == 1;
  for (int64_t row = 0; row < to.count; ++row, from += from_row) {
    const auto* rounded = static_cast<const Element*>(unpacked.data) + row * unpacked.row_stride;
    auto* target = static_cast<Element*>(to.data) + row * to.row_stride;
    const T f = factors == nullptr ? factor : factor * factors[row];
    int64_t column = 0;
    if constexpr (kHasVectors<T, Element>) {
      for (; in_vectors && column + kLanes<T> <= to.columns; column += kLanes<T>) {
        store(target + column, load(from + column) * f - load(rounded + column));
      }
    }
    for (; column < to.columns; ++column) {
      const auto whole = static_cast<T>(widen(rounded[column * unpacked.column_stride]));
      narrow(from[column] * f - whole, target + column * to.column_stride);
    }
  }
}

template <typename T>
void dot_rows(const T* a, int64_t a_row, const T* b, int64_t b_row, int64_t count, int64_t columns,
              T* to) {
  for (int64_t row = 0; row < count; ++row, a += a_row, b += b_row) {
    Vec<T> sums = {};
    int64_t column = 0;
    for (; column + kLanes<T> <= columns; column += kLanes<T>) {
      sums += load(a + column) * load(b + column);
    }
    T sum = reduce_sum<T>(sums);
    for (; column < columns; ++column) sum += a[column] * b[column];
    to[row] = sum;
  }
}

template <typename T>
void add(const T* from, int64_t count, T* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

template <typename T>
bool are_finite(const T* from, int64_t from_row, int64_t count, int64_t columns) {
  constexpr int64_t kSums = 4;  // additions to different sums do not wait for each other
  Vec<T> zeros[kSums] = {};     // sums of 0 * x, which is NaN if x is not finite
  T rest = 0;
  for (int64_t row = 0; row < count; ++row, from += from_row) {
    int64_t column = 0;
    for (; column + kSums * kLanes<T> <= columns; column += kSums * kLanes<T>) {
#pragma GCC unroll 4
      for (int64_t n = 0; n < kSums; ++n) {
        zeros[n] += load(from + column + n * kLanes<T>) * T{0};
      }
    }
    for (; column + kLanes<T> <= columns; column += kLanes<T>) {
      zeros[0] += load(from + column) * T{0};
    }
    for (; column < columns; ++column) rest += from[column] * T{0};
  }
  return reduce_sum<T>(zeros[0] + zeros[1] + (zeros[2] + zeros[3])) + rest == 0;
}

template <typename T>
void pack(const Rows& from, T* to, int64_t to_row) {
  with_element(from.type, [&](auto element) { pack_as<T, decltype(element)>(from, to, to_row); });
}

template <typename T>
void pack_transposed(const Rows& from, T factor, T* to, int64_t to_row) {
  with_element(from.type, [&](auto element) {
    pack_transposed_as<T, decltype(element)>(from, factor, to, to_row);
  });
}

template <typename T>
void unpack(const T* from, int64_t from_row, T factor, const T* factors, const Rows& to) {
  with_element(to.type, [&](auto element) {
    unpack_as<T, decltype(element)>(from, from_row, factor, factors, to);
  });
}

template <typename T>
void unpack_rest(const T* from, int64_t from_row, T factor, const T* factors, const Rows& unpacked,
                 const Rows& to) {
  with_element(to.type, [&](auto element) {
    unpack_rest_as<T, decltype(element)>(from, from_row, factor, factors, unpacked, to);
  });
}

template <typename Element>
void widen_as(const Int8* from, int64_t from_row, const float* scales, const Rows& to) {
  auto* target = static_cast<Element*>(to.data);
  for (int64_t row = 0; row < to.count; ++row, from += from_row, target += to.row_stride) {
    int64_t column = 0;
    if constexpr (!kSame<Element, double>) {
      for (; column + kLanes<float> <= to.columns; column += kLanes<float>) {
        store(target + column, load(from + column) * scales[row]);
      }
    }
    for (; column < to.columns; ++column) {
      narrow(static_cast<double>(from[column].number) * scales[row], target + column);
    }
  }
}

void widen_int8(const int8_t* from, int64_t from_row, const float* scales, const Rows& to) {
  with_element(to.type, [&](auto element) {
    widen_as<decltype(element)>(reinterpret_cast<const Int8*>(from), from_row, scales, to);
  });
}

template <typename T>
constexpr MatrixKernelsOf<T> kKernels = {pack<T>,     pack_transposed<T>, unpack<T>, unpack_rest<T>,
                                         multiply<T>, dot_rows<T>,        add<T>,    are_finite<T>};

inline const BFloat16* row_of(const Rows& from, int64_t row) {
  return static_cast<const BFloat16*>(from.data) + row * from.row_stride;
}

inline BFloat16Pair pair_of(BFloat16 first, BFloat16 second) {
  return first.bits | uint32_t{second.bits} << 16;
}

/// Elements 2 * pair and 2 * pair + 1 of a row. The second is 0 if the row ends before it.
inline BFloat16Pair pair_at(const Rows& from, int64_t row, int64_t pair) {
  const auto* first = row_of(from, row) + 2 * pair * from.column_stride;
  return pair_of(*first, 2 * pair + 1 < from.columns ? first[from.column_stride] : BFloat16{});
}

void pack_pairs(const Rows& from, BFloat16Pair* to, int64_t to_row) {
  const int64_t whole = from.columns / 2;
  for (int64_t row = 0; row < from.count; ++row, to += to_row) {
    const auto* source = row_of(from, row);
    if (from.column_stride == 1) {
      __builtin_memcpy(to, source, whole * sizeof(BFloat16Pair));
    } else {
      for (int64_t pair = 0; pair < whole; ++pair) to[pair] = pair_at(from, row, pair);
    }
    for (int64_t pair = whole; pair < to_row; ++pair) to[pair] = 0;
    if (from.columns % 2 != 0) to[whole] = source[2 * whole * from.column_stride].bits;
  }
}

void pack_transposed_pairs(const Rows& from, BFloat16Pair* to, int64_t to_row) {
  constexpr int64_t kSide = kLanes<BFloat16Pair>;
  const int64_t squares = from.column_stride == 1 ? from.count / kSide * kSide : 0;
  const int64_t square_pairs = from.columns / 2 / kSide * kSide;
  for (int64_t pair = 0; pair < square_pairs; pair += kSide) {
    for (int64_t row = 0; row < squares; row += kSide) {
      const auto load_row = [&](int64_t r) {
        Vec<BFloat16Pair> pairs;
        __builtin_memcpy(&pairs, row_of(from, row + r) + 2 * pair, sizeof(pairs));
        return pairs;
      };
      pack_square<BFloat16Pair>(load_row, to + pair * to_row + row, to_row);
    }
  }
  for (int64_t pair = 0; 2 * pair < from.columns; ++pair, to += to_row) {
    int64_t row = pair < square_pairs ? squares : 0;
    for (; row < from.count; ++row) to[row] = pair_at(from, row, pair);
    for (; row < padded_end(from.count, to_row); ++row) to[row] = 0;
  }
}

void pack_column_pairs(const Rows& from, BFloat16Pair* to, int64_t to_row) {
  for (int64_t row = 0; row < from.count; row += 2, to += to_row) {
    const bool has_second = row + 1 < from.count;
    const auto* first = row_of(from, row);
    const auto* second = row_of(from, row + 1);
    int64_t column = 0;
    for (; from.column_stride == 1 && has_second && column + kLanes<float> <= from.columns;
         column += kLanes<float>) {
      store(to + column, load_bits(first + column) | load_bits(second + column) << 16);
    }
    for (; column < from.columns; ++column) {
      const int64_t at = column * from.column_stride;
      to[column] = pair_of(first[at], has_second ? second[at] : BFloat16{});
    }
    for (; column < to_row; ++column) to[column] = 0;
  }
}

bool are_finite_pairs(const BFloat16Pair* from, int64_t from_row, int64_t count, int64_t columns) {
  constexpr uint32_t kFirst = 0x7f80U, kSecond = 0x7f800000U;  // exponents of inf and NaN
  uint32_t others = 0;
  for (int64_t row = 0; row < count; ++row, from += from_row) {
    for (int64_t column = 0; column < columns; ++column) {
      const auto pair = from[column];
      others |= static_cast<uint32_t>((pair & kFirst) == kFirst) |
                static_cast<uint32_t>((pair & kSecond) == kSecond);
    }
  }
  return others == 0;
}

#ifdef __AMX_BF16__
/// Writes a row of sums, which stand in memory, to c.
template <int64_t Vectors>
void write_row(const Product<float, BFloat16Pair>& product, int64_t row, int64_t column,
               const float* row_sums) {
  const auto sums = [&](int64_t /*row*/, int64_t v) { return load(row_sums + v * kLanes<float>); };
  write_sums<1, Vectors>(sums, product, row, product.c + row * product.c_row + column);
}

/// Multiplies in tile registers. The rows of a are contiguous.
void multiply_in_registers(const Product<float, BFloat16Pair>& product) {
  int64_t column = 0;
  for (; column + 2 * kSide <= product.columns; column += 2 * kSide) {
    multiply_columns<2>(product, column, write_row<2>);
  }
  if (column < product.columns) multiply_columns<1>(product, column, write_row<1>);
}

/// to [rows, to_row] = a [rows, depth], whose columns are contiguous.
void pack_by_rows(const BFloat16Pair* a, int64_t a_column, int64_t rows, int64_t depth,
                  BFloat16Pair* to, int64_t to_row) {
  constexpr int64_t kLanesOfPairs = kLanes<BFloat16Pair>;
  for (int64_t row = 0; row < rows; row += kLanesOfPairs) {
    int64_t k = 0;
    for (; row + kLanesOfPairs <= rows && k + kLanesOfPairs <= depth; k += kLanesOfPairs) {
      const auto load_row = [&](int64_t n) { return load(a + (k + n) * a_column + row); };
      pack_square<BFloat16Pair>(load_row, to + row * to_row + k, to_row);
    }
    for (; k < depth; ++k) {
      for (int64_t r = row; r < rows && r < row + kLanesOfPairs; ++r) {
        to[r * to_row + k] = a[k * a_column + r];
      }
    }
  }
}

/// Multiplies in tile registers, 32 rows at a time, which are copied because the columns of a are
/// contiguous.
void multiply_copied_rows(const Product<float, BFloat16Pair>& product, BFloat16Pair* copy) {
  constexpr int64_t kRows = 2 * kSide;
  auto block = product;
  block.a = copy;
  block.a_row = round_up(product.depth, kSide) + kSide;  // no power of two
  block.a_column = 1;
  for (int64_t row = 0; row < product.rows; row += kRows) {
    block.rows = product.rows - row < kRows ? product.rows - row : kRows;
    block.c = product.c + row * product.c_row;
    if (product.lane_maxima != nullptr) {
      block.lane_maxima = product.lane_maxima + row * kColumnMultiple;
    }
    pack_by_rows(product.a + row, product.a_column, block.rows, product.depth, copy, block.a_row);
    multiply_in_registers(block);
  }
}

void multiply_pairs(const Product<float, BFloat16Pair>& product) {
  constexpr int64_t kDepth = 256;  // of copied rows
  // All numbers of rows are multiplied in this way: sums in registers round in another order than
  // those in vectors, and the backward pass computes the very scores of the forward pass.
  if (product.a_column == 1) {
    const TileRegisters registers;
    return multiply_in_registers(product);
  }
  if (product.a_row != 1 || product.depth > kDepth) return multiply(product);
  alignas(64) BFloat16Pair copy[2 * kSide * (kDepth + kSide)];
  const TileRegisters registers;
  multiply_copied_rows(product, copy);
}
#else
void multiply_pairs(const Product<float, BFloat16Pair>& product) { multiply(product); }
#endif

template <typename Sum, bool MultipliesBytes = kMultipliesBytes>
constexpr QuadKernels kQuadKernels = {};
template <typename Sum>
constexpr QuadKernels kQuadKernels<Sum, true> = {multiply<Sum, ByteQuad>};

constexpr PairKernels kPairKernels =
    kMultipliesBFloat16 ? PairKernels{pack_pairs, pack_transposed_pairs, pack_column_pairs,
                                      multiply_pairs, are_finite_pairs}
                        : PairKernels{};

}  // namespace

const MatrixKernels matrix_kernels = {kKernels<float>, kKernels<double>, kPairKernels,
                                      kQuadKernels<int32_t>, widen_int8};

}  // namespace heed::detail::HEED_ISA
