// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/simd.h"

/// Dot products of few packed rows with many other rows, which may have any element type. The
/// kernels that use them, decode.cpp and few_rows.cpp, are bound by memory bandwidth, so each of
/// the other rows is loaded once for all packed rows. Only for the sources of this folder.
///
///   products [R, kMicroTile / R] = 0, a vector each             # `dots`: one micro-tile
///   for d = 0, kPair .. columns:
///     for r < R, j < kMicroTile / R:
///       products[r][j] += packed[r][d .. d + kPair] * rows[j][d .. d + kPair], by lanes
///   lane r * (kMicroTile / R) + j = sum of the lanes of products[r][j]
///
/// A step loads a Pair of each row: two vectors of float. The order of its elements is the one
/// that is fastest to load. The packed rows have the same order, so the products match:
///
///   memory          e0 e1 | e2 e3 | e4 e5 ..       bfloat16: two in each 32-bit lane
///   Pair.first      e0      e2      e4    ..       the lanes << 16
///   Pair.second     e1      e3      e5    ..       the lanes & 0xffff0000
///
/// For other types, `first` has the first kWidth elements and `second` the next. A processor with
/// bfloat16 products can multiply the lanes as they are in memory: BFloat16Vector.
/// See docs/kernels.md, "Decode" and "Projections".

namespace heed::detail::HEED_ISA {

constexpr int64_t kWidth = kLanes<float>;
constexpr int64_t kPair = 2 * kWidth;

/// Dot products that are computed together, each with an accumulator register of its own. With 32
/// registers there are 16, so many that a multiply-add need not wait for the one before it.
constexpr int64_t kMicroTile = kRegisters == 32 && kWidth < 16 ? 16 : kWidth;
constexpr int64_t kVectorsOfMicroTile = kMicroTile / kWidth;

/// kMicroTile dot products or scores, one in each lane of a few vectors.
struct MicroTile {
  Vec<float> vectors[kVectorsOfMicroTile];
  float operator[](int64_t lane) const { return vectors[lane / kWidth][lane % kWidth]; }
};

inline MicroTile load_micro_tile(const float* from) {
  MicroTile x;
  __builtin_memcpy(&x, from, sizeof(x));
  return x;
}
inline void store_micro_tile(float* to, const MicroTile& x) { __builtin_memcpy(to, &x, sizeof(x)); }

/// Applies f to each vector of the micro-tiles: vector v is f(x.vectors[v], y.vectors[v], ..).
template <typename F, typename... MicroTiles>
inline MicroTile map_micro_tiles(const F& f, const MicroTiles&... all) {
  MicroTile result;
#pragma GCC unroll 4
  for (int64_t v = 0; v < kVectorsOfMicroTile; ++v) result.vectors[v] = f(all.vectors[v]...);
  return result;
}

/// kPair neighboring elements of a row, in two vectors. Their order depends on the element type.
/// It does not matter while both factors have the same one.
struct Pair {
  Vec<float> first, second;
};

template <typename T>
inline Pair load_pair(const T* from) {
  return {load(from), load(from + kWidth)};
}

/// Even elements in `first`, odd ones in `second`. This takes one operation for each vector, and
/// widening in order would take two.
inline Pair load_pair(const BFloat16* from) {
  Vec<uint32_t> bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  return {bit_cast<Vec<float>>(bits << 16), bit_cast<Vec<float>>(bits & 0xffff0000U)};
}

/// Copies `count` < kPair elements to `padded`, which holds zeros.
template <typename T>
inline void pad(const T* from, int64_t count, T (&padded)[kPair]) {
#ifdef __AVX512BW__
  const uint32_t mask = (1U << count) - 1;
  if constexpr (sizeof(T) == 1) {
    __builtin_memcpy(padded, from, count);
  } else if constexpr (sizeof(T) == 2) {
    _mm512_storeu_si512(padded, _mm512_maskz_loadu_epi16(mask, from));
  } else {
    _mm512_storeu_si512(padded, _mm512_maskz_loadu_epi32(mask, from));
    _mm512_storeu_si512(padded + kWidth, _mm512_maskz_loadu_epi32(mask >> 16, from + kWidth));
  }
#else
  __builtin_memcpy(padded, from, count * sizeof(T));
#endif
}

/// Loads `count` < kPair elements; the rest of the pair is 0.
template <typename T>
inline Pair load_pair_first(const T* from, int64_t count) {
  T padded[kPair] = {};
  pad(from, count, padded);
  return load_pair(padded);
}

/// Loads a pair, of which only the first `count` elements may exist.
template <typename T>
inline Pair load_up_to(const T* from, int64_t count) {
  return count < kPair ? load_pair_first(from, count) : load_pair(from);
}

/// Lane i: the sum of the lanes of v[i].
inline Vec<float> sums(const Vec<float>* v) {
#if defined(__AVX512F__)
  // The maskz forms, because GCC warns of an undefined operand in the plain ones (bug 105593).
  const auto add_lanes = [](__m512 a, __m512 b) {
    return _mm512_maskz_shuffle_f32x4(0xffff, a, b, 0x88) +
           _mm512_maskz_shuffle_f32x4(0xffff, a, b, 0xdd);
  };
  const auto add_pairs = [](__m512 a, __m512 b) {
    return _mm512_maskz_unpacklo_ps(0xffff, a, b) + _mm512_maskz_unpackhi_ps(0xffff, a, b);
  };
  const auto add_pairs_of_two = [](__m512 a, __m512 b) {
    const auto x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xff, x, y)) +
           _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xff, x, y));
  };
  __m512 four[4];
#pragma GCC unroll 4
  for (int64_t i = 0; i < 4; ++i) {
    four[i] =
        add_pairs_of_two(add_pairs(v[4 * i], v[4 * i + 1]), add_pairs(v[4 * i + 2], v[4 * i + 3]));
  }
  return add_lanes(add_lanes(four[0], four[1]), add_lanes(four[2], four[3]));
#elif defined(__AVX2__)
  const auto low = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  const auto high = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                       _mm256_permute2f128_ps(low, high, 0x31));
#elif defined(__aarch64__)
  return vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3]));
#else
  Vec<float> result = {};
  for (int64_t i = 0; i < kWidth; ++i) result[i] = reduce_sum<float>(v[i]);
  return result;
#endif
}

/// sums[j] += x * others[j], by lanes.
template <int64_t N>
inline void add_products(Pair x, const Pair (&others)[N], Vec<float>* sums) {
#pragma GCC unroll 16
  for (int64_t j = 0; j < N; ++j) sums[j] += x.first * others[j].first;
#pragma GCC unroll 16
  for (int64_t j = 0; j < N; ++j) sums[j] += x.second * others[j].second;
}

/// Tells `dots` how to load rows if the packed ones are float: the others are converted to float,
/// in the order that load_pair gives them.
struct PackedFloats {
  typedef float Element;

  static Pair load_packed(const float* from) { return {load(from), load(from + kWidth)}; }
  template <typename T>
  static Pair load_row(const T* from, int64_t count) {
    return load_up_to(from, count);
  }
};

struct BFloat16Vector {
  Vec<uint32_t> pairs;  // kPair elements, two neighbors in each lane
};

template <int64_t N>
inline void add_products(BFloat16Vector x, const BFloat16Vector (&others)[N], Vec<float>* sums) {
#pragma GCC unroll 16
  for (int64_t j = 0; j < N; ++j) {
    sums[j] = add_pair_products(sums[j], x.pairs, others[j].pairs);
  }
}

/// Tells `dots` how to load rows if all are bfloat16, which the processor multiplies as they are.
struct PackedBFloat16 {
  typedef BFloat16 Element;

  static BFloat16Vector load_packed(const BFloat16* from) {
    Vec<uint32_t> pairs;
    __builtin_memcpy(&pairs, from, sizeof(pairs));
    return {pairs};
  }
  static BFloat16Vector load_row(const BFloat16* from, int64_t count) {
    if (count >= kPair) return load_packed(from);
    BFloat16 padded[kPair] = {};
    pad(from, count, padded);
    return load_packed(padded);
  }
};

/// The default of `dots`, which calls prefetch(row, column) for each pair that it loads.
struct PrefetchNothing {
  void operator()(int64_t /*row*/, int64_t /*column*/) const {}
};

/// Lane r * (kMicroTile / R) + j: packed row r, r < R, times row j of `rows`, j < N; 0 where
/// j >= N. Packed rows have zeros up to a multiple of kPair.
template <int64_t R, int64_t N, typename Packed = PackedFloats, typename T,
          typename Prefetch = PrefetchNothing>
inline MicroTile dots(const typename Packed::Element* packed, int64_t packed_row, const T* rows,
                      int64_t row_stride, int64_t columns, const Prefetch& prefetch = {}) {
  typedef decltype(Packed::load_packed(packed)) Elements;
  constexpr int64_t kOthers = kMicroTile / R;
  // Rows that are read side by side. The hardware prefetches no more than 4 streams well.
  // Micro-tiles of several vectors read all N rows: with fewer sums, each would wait for the one
  // before it.
  constexpr int64_t kStreams = kVectorsOfMicroTile > 1 || N < 4 ? N : 4;
  Vec<float> products[kMicroTile] = {};
  const auto load_other = [&](int64_t j, int64_t d, int64_t count) {
    const auto other = Packed::load_row(rows + j * row_stride + d, count);
    prefetch(j, d);
    return other;
  };
  const auto add = [&](int64_t first, int64_t d, int64_t count) {
    if constexpr (kVectorsOfMicroTile > 1 && R < N) {  // registers hold R rows, but not N
      Elements of_rows[R];
#pragma GCC unroll 8
      for (int64_t r = 0; r < R; ++r) of_rows[r] = Packed::load_packed(packed + r * packed_row + d);
#pragma GCC unroll 16
      for (int64_t j = 0; j < N; ++j) {
        const Elements other[1] = {load_other(j, d, count)};
#pragma GCC unroll 8
        for (int64_t r = 0; r < R; ++r) {
          add_products<1>(of_rows[r], other, products + r * kOthers + j);
        }
      }
    } else {
      Elements others[kStreams];
#pragma GCC unroll 16
      for (int64_t j = 0; j < kStreams; ++j) others[j] = load_other(first + j, d, count);
#pragma GCC unroll 8
      for (int64_t r = 0; r < R; ++r) {
        add_products<kStreams>(Packed::load_packed(packed + r * packed_row + d), others,
                               products + r * kOthers + first);
      }
    }
  };
#pragma GCC unroll 4
  for (int64_t first = 0; first < N; first += kStreams) {
    int64_t d = 0;
    if constexpr (kVectorsOfMicroTile > 1) {  // whole pairs, without a branch for each
      for (; d + kPair <= columns; d += kPair) add(first, d, kPair);
    }
    for (; d < columns; d += kPair) add(first, d, columns - d);
  }
  MicroTile result;
#pragma GCC unroll 4
  for (int64_t v = 0; v < kVectorsOfMicroTile; ++v) result.vectors[v] = sums(products + v * kWidth);
  return result;
}

}  // namespace heed::detail::HEED_ISA
