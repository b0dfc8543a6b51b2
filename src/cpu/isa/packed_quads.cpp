// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/isa/packed_quads.h"

#include "cpu/isa/finish_rows.h"
#include "cpu/isa/instruction_set.h"
#include "cpu/isa/micro_tile_sums.h"
#include "cpu/isa/simd.h"

// Products of packed weights with input that is rounded to bytes. Operands are quads of bytes,
// along the depth. Those of the weight must not be signed:
//
//   int8      x = s b, from -127 to 127    w = t (u - 128), u from 0 to 255
//             sum of x w = s t (sum of b u - 128 sum of b)
//   int4      w = t u + o, u from 0 to 15, with t and o of the group
//             sum of x w = s (sum over groups of t (sum of b u) + o (sum of b))
//
// The sums of a group of int4 are of int32, in registers, and those over groups of float:
//
//   for each 2 vectors of outputs, for each 6 input rows:       # multiply_groups
//     totals [6, 2] = 0, in registers
//     for each group:
//       sums [6, 2] = its products of bytes                     # MicroTileSums
//       totals += scale * sums + offset * the sum of the input's bytes
//
// The dot products of bytes bound the product. docs/kernels.md, "Packed weights".

namespace heed::detail::HEED_ISA {

namespace {

constexpr int64_t kWidth = kLanes<float>;
constexpr int32_t kByteOffset = 128;

/// The largest magnitude of a row's numbers; NaN if one is NaN or infinite. Magnitudes have the
/// order of their bits, which are compared faster.
template <typename Element>
float largest_of(const Element* row, int64_t count) {
  constexpr int32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
  Vec<int32_t> lanes = {};
  int32_t largest = 0;
  int64_t k = 0;
  for (; k + kWidth <= count; k += kWidth) {
    const auto bits = bit_cast<Vec<int32_t>>(load(row + k)) & kMagnitude;
    lanes = lanes < bits ? bits : lanes;
  }
  for (; k < count; ++k) {
    const auto bits = bit_cast<int32_t>(static_cast<float>(widen(row[k]))) & kMagnitude;
    largest = largest < bits ? bits : largest;
  }
  for (int64_t lane = 0; lane < kWidth; ++lane) {
    largest = largest < lanes[lane] ? lanes[lane] : largest;
  }
  return largest < kInfinity ? bit_cast<float>(largest) : __builtin_nanf("");
}

/// x rounded to the nearest integer, halves to even.
inline int32_t rounded(float x) { return static_cast<int32_t>(__builtin_lrintf(x)); }
inline Vec<int32_t> rounded(Vec<float> x) {
#ifdef __AVX512F__
  return bit_cast<Vec<int32_t>>(_mm512_maskz_cvtps_epi32(0xffff, x));
#else
  Vec<int32_t> numbers;
  for (int lane = 0; lane < kWidth; ++lane) numbers[lane] = rounded(x[lane]);
  return numbers;
#endif
}

void sum_byte_groups(const int8_t* bytes, int64_t count, int64_t group, float* to) {
  for (int64_t first = 0; first < count; first += group) {
    int32_t sum = 0;
    for (int64_t k = first; k < first + group; ++k) sum += bytes[k];
    *to++ = static_cast<float>(sum);
  }
}

template <typename Element>
void quantize_as(const Rows& from, const QuantizedRows& to) {
  typedef int8_t Bytes __attribute__((vector_size(kVectorBytes / 4)));
  constexpr float kLargest = 127;
  for (int64_t r = 0; r < from.count; ++r) {
    const auto* row = static_cast<const Element*>(from.data) + r * from.row_stride;
    const auto largest = largest_of(row, from.columns);
    // A number that is subnormal has no reciprocal.
    const auto factor = largest > 0x1p-100F ? kLargest / largest : 0.0F;
    auto* bytes = reinterpret_cast<int8_t*>(to.numbers + r * to.numbers_row);
    Vec<int32_t> sums = {};
    int32_t sum = 0;
    int64_t k = 0;
    for (; k + kWidth <= from.columns; k += kWidth) {
      const auto numbers = rounded(load(row + k) * factor);
      const auto narrow_numbers = __builtin_convertvector(numbers, Bytes);
      __builtin_memcpy(bytes + k, &narrow_numbers, sizeof(narrow_numbers));
      sums += numbers;
    }
    for (; k < from.columns; ++k) {
      const auto number = rounded(widen(row[k]) * factor);
      bytes[k] = static_cast<int8_t>(number);
      sum += number;
    }
    for (; k < to.numbers_row * kDepthOf<ByteQuad>; ++k) bytes[k] = 0;
    for (int64_t lane = 0; lane < kWidth; ++lane) sum += sums[lane];
    to.scales[r] = largest / kLargest;
    to.corrections[r] = kByteOffset * sum;
    if (to.group > 0) {
      sum_byte_groups(bytes, from.columns, to.group, to.group_sums + r * (from.columns / to.group));
    }
  }
}

void quantize(const Rows& from, const QuantizedRows& to) {
  with_element_of<float>(from.type, [&](auto element) {
    using Element = decltype(element);
    if constexpr (!kSame<Element, double>) quantize_as<Element>(from, to);
  });
}

#ifdef __AVX512BW__
/// to [64]: quads of the bytes of four rows of 64. A step interleaves neighbors within lanes of 16
/// bytes. So the bytes are first sorted such that those of vector v of `to` are those of quarter v
/// of each lane.
inline void store_quads(const __m512i (&rows)[4], ByteQuad* to) {
  const auto order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const auto sorted = [&](int64_t r) {
    return _mm512_maskz_permutexvar_epi32(0xffff, order, rows[r]);
  };
  const auto first_halves = [](__m512i a, __m512i b) {
    return _mm512_maskz_unpacklo_epi8(~0ULL, a, b);
  };
  const auto second_halves = [](__m512i a, __m512i b) {
    return _mm512_maskz_unpackhi_epi8(~0ULL, a, b);
  };
  const auto first = sorted(0), second = sorted(1), third = sorted(2), fourth = sorted(3);
  const __m512i pairs[2][2] = {{first_halves(first, second), first_halves(third, fourth)},
                               {second_halves(first, second), second_halves(third, fourth)}};
#pragma GCC unroll 2
  for (int64_t half = 0; half < 2; ++half, to += 2 * kWidth) {
    const auto& [low, high] = pairs[half];
    _mm512_storeu_si512(to, _mm512_maskz_unpacklo_epi16(~0U, low, high));
    _mm512_storeu_si512(to + kWidth, _mm512_maskz_unpackhi_epi16(~0U, low, high));
  }
}

/// Calls visit(row, quads) for each four rows of the depth, with where their quads go. bytes(n)
/// loads row n of the values.
template <typename Visit>
inline void for_quads(const PackedRows& from, ByteQuad* to, const Visit& visit) {
  const auto columns = ~0ULL >> (kPackedPanel - from.columns);
  const auto* values = static_cast<const char*>(from.values);
  const auto bytes = [&](int64_t n) {
    return _mm512_maskz_loadu_epi8(columns, values + n * kPackedPanel);
  };
  for (int64_t row = 0; row < from.count; row += 4, to += kPackedPanel) visit(row, bytes, to);
}

void int8_to_quads(const PackedRows& from, ByteQuad* to) {
  const auto offset = _mm512_set1_epi8(static_cast<char>(kByteOffset));
  for_quads(from, to, [&](int64_t row, const auto& bytes, ByteQuad* quads) {
    const auto number = [&](int64_t n) {
      // Beyond the depth the input is 0.
      return n < from.count ? _mm512_xor_si512(bytes(n), offset) : offset;
    };
    store_quads({number(row), number(row + 1), number(row + 2), number(row + 3)}, quads);
  });
}

void int4_to_quads(const PackedRows& from, ByteQuad* to) {
  const auto low = _mm512_set1_epi8(15);
  for_quads(from, to, [&](int64_t row, const auto& bytes, ByteQuad* quads) {
    const auto first = bytes(row / 2), second = bytes(row / 2 + 1);
    const auto high = [&](__m512i twos) {
      return _mm512_and_si512(_mm512_maskz_srli_epi16(~0U, twos, 4), low);
    };
    store_quads(
        {_mm512_and_si512(first, low), high(first), _mm512_and_si512(second, low), high(second)},
        quads);
  });
}

constexpr auto kInt8ToQuads = kMultipliesBytes ? int8_to_quads : nullptr;
constexpr auto kInt4ToQuads = kMultipliesBytes ? int4_to_quads : nullptr;
#else
constexpr void (*kInt8ToQuads)(const PackedRows&, ByteQuad*) = nullptr;
constexpr auto kInt4ToQuads = kInt8ToQuads;
#endif

/// Sums of R rows and V vectors of columns.
template <int64_t R, int64_t V>
void multiply_groups_of(const QuadGroups& groups, int64_t row, int64_t column) {
  const auto& product = groups.product;
  const int64_t depth = groups.group / kDepthOf<ByteQuad>;
  Product<int32_t, ByteQuad> of_group{};
  of_group.a_row = product.a_row;
  of_group.a_column = product.a_column;
  of_group.b_row = product.b_row;
  auto ahead = *product.ahead;
  const auto* scales = static_cast<const BFloat16*>(groups.scales) + column;
  const auto* offsets = static_cast<const BFloat16*>(groups.offsets);
  const float* group_sums = groups.group_sums + row * groups.group_sums_row;
  Vec<float> totals[R][V] = {};
  for (int64_t first = 0; first < product.depth; first += depth, ++group_sums) {
    MicroTileSums<int32_t, ByteQuad, R, V> sums;
    sums.template add<true>(of_group, product.a + row * product.a_row + first * product.a_column,
                            product.b + column + first * product.b_row, depth, ahead);
#pragma GCC unroll 2
    for (int64_t v = 0; v < V; ++v) {
      const auto scale = load(scales + v * kWidth);
      const auto offset = int4_offset(offsets, column + v * kWidth, scale);
#pragma GCC unroll 8
      for (int64_t r = 0; r < R; ++r) {
        totals[r][v] += to_float(sums(r, v)) * scale;
        totals[r][v] += offset * group_sums[r * groups.group_sums_row];
      }
    }
    scales += kPackedPanel;
    if (offsets != nullptr) offsets += kPackedPanel;
  }
  *product.ahead = ahead;
  float* c = product.c + row * product.c_row + column;
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r, c += product.c_row) {
#pragma GCC unroll 2
    for (int64_t v = 0; v < V; ++v) {
      float* to = c + v * kWidth;
      store(to, product.accumulate ? load(to) + totals[r][v] : totals[r][v]);
    }
  }
}

/// The last rows, R or fewer.
template <int64_t R, int64_t V>
void multiply_groups_up_to(const QuadGroups& groups, int64_t row, int64_t column) {
  if (groups.product.rows - row == R) return multiply_groups_of<R, V>(groups, row, column);
  if constexpr (R > 1) multiply_groups_up_to<R - 1, V>(groups, row, column);
}

template <int64_t V>
void multiply_groups_of_columns(const QuadGroups& groups, int64_t column) {
  int64_t row = 0;
  for (; row + kMicroRows <= groups.product.rows; row += kMicroRows) {
    multiply_groups_of<kMicroRows, V>(groups, row, column);
  }
  multiply_groups_up_to<kMicroRows - 1, V>(groups, row, column);
}

void multiply_groups(const QuadGroups& groups) {
  const int64_t columns = groups.product.columns;
  int64_t column = 0;
  for (; column + 2 * kWidth <= columns; column += 2 * kWidth) {
    multiply_groups_of_columns<2>(groups, column);
  }
  for (; column < columns; column += kWidth) multiply_groups_of_columns<1>(groups, column);
}

/// The sums of a row, as floats.
struct QuadSums {
  const int32_t* sums;
  int32_t correction;
  float scale;
  Vec<float> vector(int64_t column) const {
    return to_float(load(sums + column) - correction) * scale;
  }
  float number(int64_t column) const {
    return static_cast<float>(sums[column] - correction) * scale;
  }
};

void finish(const QuadOutputs& outputs) {
  finish_rows(outputs.to, outputs.scales, outputs.bias, outputs.function, [&](int64_t row) {
    return QuadSums{outputs.sums + row * outputs.sums_row, outputs.corrections[row],
                    outputs.row_scales[row]};
  });
}

}  // namespace

const PackedQuadKernels packed_quad_kernels = {
    kMultipliesBytes ? quantize : nullptr,
    {nullptr, nullptr, nullptr, kInt8ToQuads, kInt4ToQuads},
    kMultipliesBytes ? multiply_groups : nullptr,
    kMultipliesBytes ? finish : nullptr};

}  // namespace heed::detail::HEED_ISA
