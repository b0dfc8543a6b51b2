// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/isa/packed.h"

#include "cpu/isa/instruction_set.h"
#include "cpu/isa/micro_tile_sums.h"
#include "cpu/isa/simd.h"

// With few input rows, a product reads the weight as it is packed:
//
//   for 1, 2 or 4 vectors of outputs:                           # add_few
//     sums [R <= 4 rows, vectors] = 0, in registers
//     for each number or pair of numbers of the depth, or of a group of it:
//       load the row's elements and convert them to float
//       sums += input[r][k] * weight[k]
//
// With more, blocks of it become operands of a matrix product, in the L1 or L2 cache:
//
//   for each number or pair of numbers of the depth:            # a row of 64 outputs
//     for each vector of outputs:
//       load the row's elements, convert them, and store floats or bfloat16 pairs
//
//   int4      byte j of row k: numbers 2 k (low bits) and 2 k + 1 (high bits) of output j
//             weight = scale * number + offset, for a group of 32, 64 or 128 numbers
//   int8      the outputs are multiplied by their scales when the sums are finished
//
// If the input is quantized too, operands are quads of bytes, along the depth. Those of the weight
// must not be signed:
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
// The products read a row many times if there are many input rows. With few, memory is the bound:
// a vector of int4 takes about 10 instructions for the 16 bytes that it reads.
// docs/kernels.md, "Packed weights".

namespace heed::detail::HEED_ISA {

namespace {

constexpr int64_t kWidth = kLanes<float>;

/// Loads bytes, each into the low bits of a 32-bit lane.
inline Vec<int32_t> load_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
  const auto bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return bit_cast<Vec<int32_t>>(_mm512_maskz_cvtepu8_epi32(0xffff, bytes));
#elif defined(__AVX2__)
  const auto bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return bit_cast<Vec<int32_t>>(_mm256_cvtepu8_epi32(bytes));
#elif defined(__aarch64__)
  uint32_t bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  const auto wide = vmovl_u8(vcreate_u8(bytes));
  return bit_cast<Vec<int32_t>>(vmovl_u16(vget_low_u16(wide)));
#else
  Vec<int32_t> v;
  for (int lane = 0; lane < kWidth; ++lane) v[lane] = from[lane];
  return v;
#endif
}

inline Vec<float> to_float(Vec<int32_t> numbers) {
  return __builtin_convertvector(numbers, Vec<float>);
}

/// The bits of a float, rounded to a multiple of those that bfloat16 lacks. Halves are rounded up,
/// which takes fewer instructions than to even. The float is finite.
inline Vec<uint32_t> rounded_bits(Vec<float> x) { return bit_cast<Vec<uint32_t>>(x) + 0x8000U; }

inline Vec<uint32_t> pairs_of(Vec<float> first, Vec<float> second) {
  return (rounded_bits(first) >> 16) | (rounded_bits(second) & 0xffff0000U);
}

// How a format loads vectors of kStep neighboring numbers of the depth, from `values` on, which
// take kBytes for the outputs of a panel.

template <typename Element>
struct RowsOf {
  static constexpr int64_t kStep = 1, kBytes = kPackedPanel * sizeof(Element);
  static void load_step(const char* values, int64_t column, Vec<float> (&to)[1]) {
    to[0] = load(reinterpret_cast<const Element*>(values) + column);
  }
};

struct RowsOfPairs {
  static constexpr int64_t kStep = 2, kBytes = kPackedPanel * sizeof(BFloat16Pair);
  static void load_step(const char* values, int64_t column, Vec<float> (&to)[2]) {
    const auto pairs = load(reinterpret_cast<const BFloat16Pair*>(values) + column);
    to[0] = bit_cast<Vec<float>>(pairs << 16);
    to[1] = bit_cast<Vec<float>>(pairs & 0xffff0000U);
  }
};

struct RowsOfInt4 {
  static constexpr int64_t kStep = 2, kBytes = kPackedPanel;
  static void load_step(const char* values, int64_t column, Vec<float> (&to)[2]) {
    const auto bytes = load_bytes(reinterpret_cast<const uint8_t*>(values) + column);
#ifdef __AVX512F__
    // A permutation reads the low 4 bits of a lane alone, which takes the place of two
    // instructions.
    const Vec<float> numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const auto number_of = [&](Vec<int32_t> lanes) -> Vec<float> {
      return _mm512_maskz_permutexvar_ps(0xffff, bit_cast<__m512i>(lanes), numbers);
    };
    to[0] = number_of(bytes);
    to[1] = number_of(bytes >> 4);
#else
    to[0] = to_float(bytes & 15);
    to[1] = to_float(bytes >> 4);
#endif
  }
};

/// Calls visit(row, column, first, second) for all vectors of the weights of two neighboring rows,
/// int4.
template <typename Visit>
inline void for_int4(const PackedRows& from, const Visit& visit) {
  const auto* values = static_cast<const char*>(from.values);
  const auto* scales = static_cast<const BFloat16*>(from.scales);
  const auto* offsets = static_cast<const BFloat16*>(from.offsets);
  for (int64_t first = 0; first < from.count; first += from.group) {
    const int64_t last = first + from.group < from.count ? first + from.group : from.count;
    for (int64_t column = 0; column < from.columns; column += kWidth) {
      const auto scale = load(scales + column), offset = load(offsets + column);
      for (int64_t row = first; row < last; row += 2) {
        Vec<float> numbers[2];
        RowsOfInt4::load_step(values + row / 2 * RowsOfInt4::kBytes, column, numbers);
        visit(row, column, numbers[0] * scale + offset, numbers[1] * scale + offset);
      }
    }
    scales += kPackedPanel;
    offsets += kPackedPanel;
  }
}

void int4_to_floats(const PackedRows& from, float* to) {
  for_int4(from, [&](int64_t row, int64_t column, Vec<float> first, Vec<float> second) {
    store(to + row * kPackedPanel + column, first);
    if (row + 1 < from.count) store(to + (row + 1) * kPackedPanel + column, second);
  });
}

void int4_to_pairs(const PackedRows& from, BFloat16Pair* to) {
  for_int4(from, [&](int64_t row, int64_t column, Vec<float> first, Vec<float> second) {
    // Beyond the depth the operand that is multiplied is 0, and these numbers are finite.
    store(to + row / 2 * kPackedPanel + column, pairs_of(first, second));
  });
}

template <typename Loader>
void to_floats(const PackedRows& from, float* to) {
  constexpr int64_t kStep = Loader::kStep;
  const auto* values = static_cast<const char*>(from.values);
  for (int64_t row = 0; row < from.count; row += kStep, values += Loader::kBytes) {
    for (int64_t column = 0; column < from.columns; column += kWidth) {
      Vec<float> numbers[kStep];
      Loader::load_step(values, column, numbers);
      for (int64_t i = 0; i < kStep && row + i < from.count; ++i) {
        store(to + (row + i) * kPackedPanel + column, numbers[i]);
      }
    }
  }
}

void int8_to_pairs(const PackedRows& from, BFloat16Pair* to) {
  const auto* values = static_cast<const Int8*>(from.values);
  for (int64_t row = 0; row < from.count; row += 2) {
    const bool has_second = row + 1 < from.count;
    for (int64_t column = 0; column < from.columns; column += kWidth) {
      const auto* first = values + row * kPackedPanel + column;
      // bfloat16 holds integers up to 256 exactly.
      const auto low = bit_cast<Vec<uint32_t>>(load(first)) >> 16;
      const auto high =
          has_second ? bit_cast<Vec<uint32_t>>(load(first + kPackedPanel)) : Vec<uint32_t>{};
      store(to + row / 2 * kPackedPanel + column, low | high);
    }
  }
}

constexpr int64_t kFewVectors = kRegisters == 32 ? 4 : 2;
static_assert(kPackedPanel % (kFewVectors * kWidth) == 0);

/// sums = the products over numbers [first, last) of the depth.
template <typename Loader, int64_t R, int64_t V>
inline void multiply_few(const PackedFew& few, int64_t first, int64_t last, int64_t column,
                         Vec<float> (&sums)[R][V]) {
  constexpr int64_t kStep = Loader::kStep, kBytes = Loader::kBytes;
  constexpr int64_t kAhead = 8192;  // two pages: the hardware prefetches none beyond a page's end
  const auto* values = static_cast<const char*>(few.weight.values) + first / kStep * kBytes;
#pragma GCC unroll 4
  for (int64_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < V; ++v) sums[r][v] = Vec<float>{};
  }
  for (int64_t k = first; k < last; k += kStep, values += kBytes) {
    if (column == 0) prefetch<kBytes, 3>(values + kAhead);
#pragma GCC unroll 4
    for (int64_t v = 0; v < V; ++v) {
      Vec<float> weights[kStep];
      Loader::load_step(values, column + v * kWidth, weights);
#pragma GCC unroll 4
      for (int64_t r = 0; r < R; ++r) {
        const float* x = few.input + r * few.input_row + k;
#pragma GCC unroll 2
        for (int64_t i = 0; i < kStep; ++i) sums[r][v] += weights[i] * x[i];
      }
    }
  }
}

/// Adds the products of R rows and V vectors of outputs. Those of int4 are multiplied by the scales
/// of each group.
template <typename Loader, int64_t R, int64_t V>
void add_few_columns(const PackedFew& few, int64_t column) {
  const auto& weight = few.weight;
  const bool has_groups = weight.scales != nullptr;
  const int64_t each = has_groups ? weight.group : weight.count;
  for (int64_t first = 0, group = 0; first < weight.count; first += each, ++group) {
    Vec<float> products[R][V];
    multiply_few<Loader, R, V>(few, first, first + each, column, products);
    const auto* scales = static_cast<const BFloat16*>(weight.scales) + group * kPackedPanel;
    const auto* offsets = static_cast<const BFloat16*>(weight.offsets) + group * kPackedPanel;
#pragma GCC unroll 4
    for (int64_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < V; ++v) {
        const int64_t at = column + v * kWidth;
        float* to = few.sums + r * kPackedPanel + at;
        auto sum = products[r][v];
        if (has_groups) {
          sum = sum * load(scales + at) +
                load(offsets + at) * few.group_sums[r * few.group_sums_row + group];
        }
        store(to, load(to) + sum);
      }
    }
  }
}

template <typename Loader, int64_t R>
void add_few_rows(const PackedFew& few) {
  int64_t column = 0;
  for (; column + kFewVectors * kWidth <= few.weight.columns; column += kFewVectors * kWidth) {
    add_few_columns<Loader, R, kFewVectors>(few, column);
  }
  for (; column < few.weight.columns; column += kWidth) {
    add_few_columns<Loader, R, 1>(few, column);
  }
}

template <typename Loader>
void add_few(const PackedFew& few) {
  static_assert(kPackedFew == 4);
  switch (few.rows) {
    case 1:
      return add_few_rows<Loader, 1>(few);
    case 2:
      return add_few_rows<Loader, 2>(few);
    case 3:
      return add_few_rows<Loader, 3>(few);
    default:
      return add_few_rows<Loader, kPackedFew>(few);
  }
}

void sum_groups(const float* from, int64_t count, int64_t group, float* to) {
  for (int64_t first = 0; first < count; first += group) {
    Vec<float> sums = {};
    for (int64_t k = first; k < first + group; k += kWidth) sums += load(from + k);
    *to++ = reduce_sum<float>(sums);
  }
}

/// The sums of a row as floats.
struct FloatSums {
  const float* sums;
  float scale;
  Vec<float> vector(int64_t column) const { return load(sums + column) * scale; }
  float number(int64_t column) const { return sums[column] * scale; }
};

/// The sums of a row of quantized input, as floats.
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

/// Writes rows to[r] = sums_of(r) * scales + bias; scales and bias may be null.
template <typename SumsOf>
void finish_rows(const Rows& to, const float* scales, const void* biases, const SumsOf& sums_of) {
  with_element_of<float>(to.type, [&](auto element) {
    using Element = decltype(element);
    if constexpr (!kSame<Element, double>) {
      const auto* bias = static_cast<const Element*>(biases);
      for (int64_t row = 0; row < to.count; ++row) {
        const auto sums = sums_of(row);
        auto* output = static_cast<Element*>(to.data) + row * to.row_stride;
        int64_t column = 0;
        for (; column + kWidth <= to.columns; column += kWidth) {
          auto result = sums.vector(column);
          if (scales != nullptr) result *= load(scales + column);
          if (bias != nullptr) result += load(bias + column);
          store(output + column, result);
        }
        for (; column < to.columns; ++column) {
          float result = sums.number(column);
          if (scales != nullptr) result *= scales[column];
          if (bias != nullptr) result += widen(bias[column]);
          narrow(result, output + column);
        }
      }
    }
  });
}

void finish(const PackedOutputs& outputs) {
  finish_rows(outputs.to, outputs.scales, outputs.bias, [&](int64_t row) {
    return FloatSums{outputs.sums + row * outputs.sums_row,
                     outputs.row_scales != nullptr ? outputs.row_scales[row] : 1};
  });
}

constexpr int32_t kByteOffset = 128;

/// The largest magnitude of a row's numbers; NaN if one is NaN or infinite.
template <typename Element>
float largest_of(const Element* row, int64_t count) {
  Vec<float> largest = {}, zeros = {};
  float largest_of_rest = 0, zero = 0;
  int64_t k = 0;
  for (; k + kWidth <= count; k += kWidth) {
    const auto x = load(row + k);
    largest = larger<float>(larger<float>(largest, x), -x);
    zeros += x * 0.0F;
  }
  for (; k < count; ++k) {
    const auto x = widen(row[k]);
    const auto magnitude = x < 0 ? -x : x;
    largest_of_rest = magnitude > largest_of_rest ? magnitude : largest_of_rest;
    zero += x * 0.0F;
  }
  const auto most = reduce<float>(largest, larger<float>);
  return (most > largest_of_rest ? most : largest_of_rest) + zero + reduce_sum<float>(zeros);
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
  const auto* offsets = static_cast<const BFloat16*>(groups.offsets) + column;
  const float* group_sums = groups.group_sums + row * groups.group_sums_row;
  Vec<float> totals[R][V] = {};
  for (int64_t first = 0; first < product.depth; first += depth, ++group_sums) {
    MicroTileSums<int32_t, ByteQuad, R, V> sums;
    sums.template add<true>(of_group, product.a + row * product.a_row + first * product.a_column,
                            product.b + column + first * product.b_row, depth, ahead);
#pragma GCC unroll 2
    for (int64_t v = 0; v < V; ++v) {
      const auto scale = load(scales + v * kWidth), offset = load(offsets + v * kWidth);
#pragma GCC unroll 8
      for (int64_t r = 0; r < R; ++r) {
        totals[r][v] += to_float(sums(r, v)) * scale;
        totals[r][v] += offset * group_sums[r * groups.group_sums_row];
      }
    }
    scales += kPackedPanel;
    offsets += kPackedPanel;
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

void finish_quads(const QuadOutputs& outputs) {
  finish_rows(outputs.to, outputs.scales, outputs.bias, [&](int64_t row) {
    return QuadSums{outputs.sums + row * outputs.sums_row, outputs.corrections[row],
                    outputs.row_scales[row]};
  });
}

}  // namespace

const PackedKernels packed_kernels = {
    {to_floats<RowsOf<float>>, to_floats<RowsOfPairs>, to_floats<RowsOf<Half>>,
     to_floats<RowsOf<Int8>>, int4_to_floats},
    {nullptr, nullptr, nullptr, int8_to_pairs, int4_to_pairs},
    {add_few<RowsOf<float>>, add_few<RowsOfPairs>, add_few<RowsOf<Half>>, add_few<RowsOf<Int8>>,
     add_few<RowsOfInt4>},
    sum_groups,
    finish,
    kMultipliesBytes ? quantize : nullptr,
    {nullptr, nullptr, nullptr, kInt8ToQuads, kInt4ToQuads},
    kMultipliesBytes ? multiply_groups : nullptr,
    kMultipliesBytes ? finish_quads : nullptr};

}  // namespace heed::detail::HEED_ISA
