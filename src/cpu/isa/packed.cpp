// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/isa/packed.h"

#include "cpu/isa/finish_rows.h"
#include "cpu/isa/instruction_set.h"
#include "cpu/isa/micro_tile_sums.h"
#include "cpu/isa/simd.h"

// With few input rows, a product reads the weight as it is packed:
//
//   for 1, 2 or 4 vectors of outputs:                           # add_few, add_few_pairs
//     sums [R <= 4 or 8 rows, vectors] = 0, in registers
//     for each number or pair of numbers of the depth, or of a group of it:
//       load the row's elements, and convert them to float unless pairs are multiplied as they are
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

/// The bits of a float, rounded to a multiple of those that bfloat16 lacks. Halves are rounded up,
/// which takes fewer instructions than to even. The float is finite.
inline Vec<uint32_t> rounded_bits(Vec<float> x) { return bit_cast<Vec<uint32_t>>(x) + 0x8000U; }

inline Vec<uint32_t> pairs_of(Vec<float> first, Vec<float> second) {
  return (rounded_bits(first) >> 16) | (rounded_bits(second) & 0xffff0000U);
}

// How a format loads vectors of kStep neighboring numbers of the depth, from `values` on, which
// take kBytes for the outputs of a panel, as operands of a product.

template <typename Element>
struct RowsOf {
  typedef float Operand;
  static constexpr int64_t kStep = 1, kBytes = kPackedPanel * sizeof(Element);
  static void load_step(const char* values, int64_t column, Vec<float> (&to)[1]) {
    to[0] = load(reinterpret_cast<const Element*>(values) + column);
  }
};

struct RowsOfPairs {
  typedef float Operand;
  static constexpr int64_t kStep = 2, kBytes = kPackedPanel * sizeof(BFloat16Pair);
  static void load_step(const char* values, int64_t column, Vec<float> (&to)[2]) {
    const auto pairs = load(reinterpret_cast<const BFloat16Pair*>(values) + column);
    to[0] = bit_cast<Vec<float>>(pairs << 16);
    to[1] = bit_cast<Vec<float>>(pairs & 0xffff0000U);
  }
};

struct RowsOfInt4 {
  typedef float Operand;
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

// How a format loads a vector of pairs of neighbors. bfloat16 holds integers up to 256 exactly.

struct PairsAsTheyAre {
  typedef BFloat16Pair Operand;
  static constexpr int64_t kStep = 2, kBytes = RowsOfPairs::kBytes;
  static void load_step(const char* values, int64_t column, Vec<BFloat16Pair> (&to)[1]) {
    to[0] = load(reinterpret_cast<const BFloat16Pair*>(values) + column);
  }
};

struct PairsOfInt8 {
  typedef BFloat16Pair Operand;
  static constexpr int64_t kStep = 2, kBytes = 2 * kPackedPanel;
  static void load_step(const char* values, int64_t column, Vec<BFloat16Pair> (&to)[1]) {
    const auto* first = reinterpret_cast<const Int8*>(values) + column;
    to[0] = (bit_cast<Vec<BFloat16Pair>>(load(first)) >> 16) |
            bit_cast<Vec<BFloat16Pair>>(load(first + kPackedPanel));
  }
};

struct PairsOfInt4 {
  typedef BFloat16Pair Operand;
  static constexpr int64_t kStep = 2, kBytes = RowsOfInt4::kBytes;
  static void load_step(const char* values, int64_t column, Vec<BFloat16Pair> (&to)[1]) {
    Vec<float> numbers[2];
    RowsOfInt4::load_step(values, column, numbers);
    to[0] =
        (bit_cast<Vec<BFloat16Pair>>(numbers[0]) >> 16) | bit_cast<Vec<BFloat16Pair>>(numbers[1]);
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
      const auto scale = load(scales + column);
      const auto offset = int4_offset(offsets, column, scale);
      for (int64_t row = first; row < last; row += 2) {
        Vec<float> numbers[2];
        RowsOfInt4::load_step(values + row / 2 * RowsOfInt4::kBytes, column, numbers);
        visit(row, column, numbers[0] * scale + offset, numbers[1] * scale + offset);
      }
    }
    scales += kPackedPanel;
    if (offsets != nullptr) offsets += kPackedPanel;
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
  const auto* values = static_cast<const char*>(from.values);
  for (int64_t row = 0; row < from.count; row += 2, to += kPackedPanel) {
    for (int64_t column = 0; column < from.columns; column += kWidth) {
      Vec<BFloat16Pair> pairs[1];
      if (row + 1 < from.count) {
        PairsOfInt8::load_step(values, column, pairs);
      } else {
        Vec<float> last[1];
        RowsOf<Int8>::load_step(values, column, last);
        pairs[0] = bit_cast<Vec<BFloat16Pair>>(last[0]) >> 16;
      }
      store(to + column, pairs[0]);
    }
    values += PairsOfInt8::kBytes;
  }
}

constexpr int64_t kFewVectors = kRegisters == 32 ? 4 : 2;
static_assert(kPackedPanel % (kFewVectors * kWidth) == 0);

/// sums = the products over numbers [first, last) of the depth.
template <typename Loader, int64_t R, int64_t V>
inline void multiply_few(const PackedFew<typename Loader::Operand>& few, int64_t first,
                         int64_t last, int64_t column, Vec<float> (&sums)[R][V]) {
  typedef typename Loader::Operand Operand;
  constexpr int64_t kStep = Loader::kStep, kBytes = Loader::kBytes;
  constexpr int64_t kOperands = kStep / kDepthOf<Operand>;
  // Several passes over the columns of a panel share the prefetching of a block, which is read
  // next. A single one, and those over the last columns, prefetch two pages ahead: the hardware
  // prefetches none beyond a page's end.
  constexpr int64_t kPasses = V == 1 ? 1 : kPackedPanel / (V * kWidth);
  constexpr int64_t kAhead = kPasses == 1 ? 8192 : kPackedFewNumbers / kStep * kBytes;
  const int64_t pass = column / (V * kWidth);
  const auto* values = static_cast<const char*>(few.weight.values) + first / kStep * kBytes;
#pragma GCC unroll 8
  for (int64_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < V; ++v) sums[r][v] = Vec<float>{};
  }
  for (int64_t k = first; k < last; k += kStep, values += kBytes) {
    if (kPasses == 1 ? pass == 0 : k / kStep % kPasses == pass)
      prefetch<kBytes, 3>(values + kAhead);
#pragma GCC unroll 4
    for (int64_t v = 0; v < V; ++v) {
      Vec<Operand> weights[kOperands];
      Loader::load_step(values, column + v * kWidth, weights);
#pragma GCC unroll 8
      for (int64_t r = 0; r < R; ++r) {
        const Operand* x = few.input + r * few.input_row + k / kDepthOf<Operand>;
#pragma GCC unroll 2
        for (int64_t i = 0; i < kOperands; ++i) add_product(x[i], weights[i], sums[r][v]);
      }
    }
  }
}

/// Adds the products of R rows and V vectors of outputs. Those of int4 are multiplied by the scales
/// of each group.
template <typename Loader, int64_t R, int64_t V>
void add_few_columns(const PackedFew<typename Loader::Operand>& few, int64_t column) {
  const auto& weight = few.weight;
  const bool has_groups = weight.scales != nullptr;
  const int64_t each = has_groups ? weight.group : weight.count;
  for (int64_t first = 0, group = 0; first < weight.count; first += each, ++group) {
    Vec<float> products[R][V];
    multiply_few<Loader, R, V>(few, first, first + each, column, products);
    const auto* scales = static_cast<const BFloat16*>(weight.scales) + group * kPackedPanel;
    const auto* offsets = static_cast<const BFloat16*>(weight.offsets);
    if (offsets != nullptr) offsets += group * kPackedPanel;
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < V; ++v) {
        const int64_t at = column + v * kWidth;
        float* to = few.sums + r * kPackedPanel + at;
        auto sum = products[r][v];
        if (has_groups) {
          const auto scale = load(scales + at);
          sum = sum * scale +
                int4_offset(offsets, at, scale) * few.group_sums[r * few.group_sums_row + group];
        }
        store(to, load(to) + sum);
      }
    }
  }
}

template <typename Loader, int64_t R>
void add_few_rows(const PackedFew<typename Loader::Operand>& few) {
  constexpr int64_t kVectors = R > kPackedFew<float> ? kFewVectors / 2 : kFewVectors;
  int64_t column = 0;
  for (; column + kVectors * kWidth <= few.weight.columns; column += kVectors * kWidth) {
    add_few_columns<Loader, R, kVectors>(few, column);
  }
  for (; column < few.weight.columns; column += kWidth) {
    add_few_columns<Loader, R, 1>(few, column);
  }
}

template <typename Loader, int64_t MostRows = kPackedFew<typename Loader::Operand>>
void add_few(const PackedFew<typename Loader::Operand>& few) {
  if constexpr (MostRows > 1) {
    if (few.rows < MostRows) return add_few<Loader, MostRows - 1>(few);
  }
  add_few_rows<Loader, MostRows>(few);
}

template <typename Loader>
constexpr auto add_few_pairs() noexcept -> void (*)(const PackedFew<BFloat16Pair>&) {
  if constexpr (kMultipliesBFloat16) return add_few<Loader>;
  return nullptr;
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

void finish(const PackedOutputs& outputs) {
  finish_rows(outputs.to, outputs.scales, outputs.bias, outputs.function, [&](int64_t row) {
    return FloatSums{outputs.sums + row * outputs.sums_row,
                     outputs.row_scales != nullptr ? outputs.row_scales[row] : 1};
  });
}

}  // namespace

const PackedKernels packed_kernels = {
    {to_floats<RowsOf<float>>, to_floats<RowsOfPairs>, to_floats<RowsOf<Half>>,
     to_floats<RowsOf<Int8>>, int4_to_floats},
    {nullptr, nullptr, nullptr, int8_to_pairs, int4_to_pairs},
    {add_few<RowsOf<float>>, add_few<RowsOfPairs>, add_few<RowsOf<Half>>, add_few<RowsOf<Int8>>,
     add_few<RowsOfInt4>},
    {nullptr, add_few_pairs<PairsAsTheyAre>(), nullptr, add_few_pairs<PairsOfInt8>(),
     add_few_pairs<PairsOfInt4>()},
    sum_groups,
    finish};

}  // namespace heed::detail::HEED_ISA
