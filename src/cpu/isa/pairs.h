#pragma once

#include "cpu/isa/simd.h"

/// Dot products of few packed rows with many rows of any element type, each of which is loaded
/// once: what kernels are made of whose speed is that of memory.

namespace heed::detail::HEED_ISA {

constexpr int64_t kWidth = kLanes<float>;
constexpr int64_t kPair = 2 * kWidth;

/// Dot products that are computed together, one in each lane of a few vectors: with 32 registers,
/// 16 are sums, so many that each waits for no other.
constexpr int64_t kTile = kRegisters == 32 && kWidth < 16 ? 16 : kWidth;
constexpr int64_t kVectorsOfTile = kTile / kWidth;

struct Tile {
  Vec<float> vectors[kVectorsOfTile];
  float operator[](int64_t lane) const { return vectors[lane / kWidth][lane % kWidth]; }
};

inline Tile load_tile(const float* from) {
  Tile tile;
  __builtin_memcpy(&tile, from, sizeof(tile));
  return tile;
}
inline void store_tile(float* to, const Tile& tile) { __builtin_memcpy(to, &tile, sizeof(tile)); }

/// f(vector) of each vector, or f(vector of x, vector of y).
template <typename F, typename... Tiles>
inline Tile map_tiles(const F& f, const Tiles&... tiles) {
  Tile result;
#pragma GCC unroll 4
  for (int64_t v = 0; v < kVectorsOfTile; ++v) result.vectors[v] = f(tiles.vectors[v]...);
  return result;
}

/// kPair elements. Their order is the type's own: what is packed, multiplied and stored by pairs
/// never sees it.
struct Pair {
  Vec<float> first, second;
};

template <typename T>
inline Pair load_pair(const T* from) {
  return {load(from), load(from + kWidth)};
}

/// Even elements, then odd: one operation a vector, where widening in order takes two.
inline Pair load_pair(const BFloat16* from) {
  Vec<uint32_t> bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  return {bit_cast<Vec<float>>(bits << 16), bit_cast<Vec<float>>(bits & 0xffff0000U)};
}

/// Writes the first `count` < kPair elements to `padded`, which holds zeros.
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

/// The first `count` < kPair elements, then zeros.
template <typename T>
inline Pair load_pair_first(const T* from, int64_t count) {
  T padded[kPair] = {};
  pad(from, count, padded);
  return load_pair(padded);
}

template <typename T>
inline Pair load_up_to(const T* from, int64_t count) {
  return count < kPair ? load_pair_first(from, count) : load_pair(from);
}

/// Lane i: the sum of the lanes of v[i].
inline Vec<float> sums(const Vec<float>* v) {
#if defined(__AVX512F__)
  // The maskz forms: the plain ones warn of their undefined operand (GCC 105593).
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

template <int64_t N>
inline void add_products(Pair x, const Pair (&others)[N], Vec<float>* sums) {
#pragma GCC unroll 16
  for (int64_t j = 0; j < N; ++j) sums[j] += x.first * others[j].first;
#pragma GCC unroll 16
  for (int64_t j = 0; j < N; ++j) sums[j] += x.second * others[j].second;
}

/// What `dots` reads of rows that are packed as floats: in the order of their type's pairs.
struct PackedFloats {
  typedef float Element;

  static Pair load_packed(const float* from) { return {load(from), load(from + kWidth)}; }
  template <typename T>
  static Pair load_row(const T* from, int64_t count) {
    return load_up_to(from, count);
  }
};

struct BFloat16Vector {
  Vec<uint32_t> pairs;  // kPair elements
};

template <int64_t N>
inline void add_products(BFloat16Vector x, const BFloat16Vector (&others)[N], Vec<float>* sums) {
#pragma GCC unroll 16
  for (int64_t j = 0; j < N; ++j) {
    sums[j] = add_pair_products(sums[j], x.pairs, others[j].pairs);
  }
}

/// Of rows of bfloat16 that stay as they are.
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

/// What `dots` calls for each part of a row that it loads, to prefetch others.
struct PrefetchNothing {
  void operator()(int64_t /*row*/, int64_t /*column*/) const {}
};

/// Lane r * (kTile / R) + j: the dot product of packed row r, r < R, and row j of `rows`, j < N; 0
/// where j >= N. Packed rows have zeros up to a multiple of kPair.
template <int64_t R, int64_t N, typename Packed = PackedFloats, typename T,
          typename Prefetch = PrefetchNothing>
inline Tile dots(const typename Packed::Element* packed, int64_t packed_row, const T* rows,
                 int64_t row_stride, int64_t columns, const Prefetch& prefetch = {}) {
  typedef decltype(Packed::load_packed(packed)) Elements;
  constexpr int64_t kOthers = kTile / R;
  // The hardware fetches no more streams well. Tiles of several vectors take all rows at once: so
  // many sums that each waits for no other.
  constexpr int64_t kStreams = kVectorsOfTile > 1 || N < 4 ? N : 4;
  Vec<float> products[kTile] = {};
  const auto load_other = [&](int64_t j, int64_t d, int64_t count) {
    const auto other = Packed::load_row(rows + j * row_stride + d, count);
    prefetch(j, d);
    return other;
  };
  const auto add = [&](int64_t first, int64_t d, int64_t count) {
    if constexpr (kVectorsOfTile > 1 && R < N) {  // registers for R vectors, but not for N
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
    if constexpr (kVectorsOfTile > 1) {  // without a branch for each vector
      for (; d + kPair <= columns; d += kPair) add(first, d, kPair);
    }
    for (; d < columns; d += kPair) add(first, d, columns - d);
  }
  Tile result;
#pragma GCC unroll 4
  for (int64_t v = 0; v < kVectorsOfTile; ++v) result.vectors[v] = sums(products + v * kWidth);
  return result;
}

}  // namespace heed::detail::HEED_ISA
