// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <stdint.h>

#include "core/element_types.h"
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/// Vectors of the instruction set for which a kernel source is compiled. They use the compiler's
/// vector extension: + - * / and < apply to each lane, and `a < b ? x : y` selects by lane. Only
/// for the sources of this folder.
///
/// cmake/kernels.cmake compiles these sources once for each instruction set, with the compiler
/// flags of the set and with the macro HEED_ISA, its name. HEED_ISA is also the namespace of all
/// code here, so that builds for different sets can be linked together.
///
/// The compiler's own macros (__AVX512F__, __F16C__, __aarch64__ ..) choose the constants below. A
/// new instruction set needs values of all six: kVectorBytes, the size of a register; kRegisters,
/// their number, from which micro-tiles get their size; kConvertsHalf and kMultipliesBFloat16,
/// whether there are instructions for float16 conversions and bfloat16 products;
/// kHasTileRegisters, whether these products are those of AMX's tile registers; and
/// kMultipliesBytes, whether products of bytes are faster than they. Functions with an
/// #if end in a portable branch. A new branch is needed for speed, or where an existing one is
/// taken that assumes another size of vectors: those of __aarch64__ assume 16 bytes.
/// The set is also named in cmake/kernels.cmake and capability.cpp. See docs/kernels.md,
/// "Instruction sets" and "ARM".

namespace heed::detail::HEED_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

#if defined(__F16C__) || defined(__aarch64__)
constexpr bool kConvertsHalf = true;
#else
constexpr bool kConvertsHalf = false;
#endif

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool kMultipliesBFloat16 = true;
#else
constexpr bool kMultipliesBFloat16 = false;
#endif

#ifdef __AMX_BF16__
constexpr bool kHasTileRegisters = true;
#else
constexpr bool kHasTileRegisters = false;
#endif

// Tile registers multiply bfloat16 faster than vectors multiply bytes.
#if defined(__AVX512VNNI__) && !defined(__AMX_BF16__)
constexpr bool kMultipliesBytes = true;
#else
constexpr bool kMultipliesBytes = false;
#endif

template <typename T>
struct VecOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <typename T>
using Vec = typename VecOf<T>::type;
template <typename T>
constexpr int64_t kLanes = kVectorBytes / sizeof(T);

/// 16-bit floating-point numbers as they are in memory. Vectors hold them converted to float.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
/// An 8-bit integer as it is in memory. Vectors hold it converted to float.
struct Int8 {
  int8_t number;
};
template <>
struct VecOf<Int8> {};
template <>
struct VecOf<Half> {};
template <>
struct VecOf<BFloat16> {};

// NOLINTBEGIN(bugprone-macro-parentheses): types cannot have parentheses.

/// Calls visit(Element{}), where Element is the C++ type of `type`.
template <typename Visit>
inline void with_element(ElementType type, const Visit& visit) {
  switch (type) {
#define HEED_CASE(name, Element, Compute, torch_name) \
  case ElementType::name:                             \
    return visit(Element{});
    HEED_ELEMENT_TYPES(HEED_CASE)
#undef HEED_CASE
  }
}

template <typename A, typename B>
constexpr bool kSame = false;
template <typename A>
constexpr bool kSame<A, A> = true;

/// Calls visit(Element{}) if Element, the C++ type of `type`, is computed in `T`.
template <typename T, typename Visit>
inline void with_element_of(ElementType type, const Visit& visit) {
  switch (type) {
#define HEED_CASE(name, Element, Compute, torch_name)         \
  case ElementType::name:                                     \
    if constexpr (kSame<T, Compute>) return visit(Element{}); \
    return;
    HEED_ELEMENT_TYPES(HEED_CASE)
#undef HEED_CASE
  }
}

// NOLINTEND(bugprone-macro-parentheses)

template <typename To, typename From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename T>
inline Vec<T> broadcast(T x) {
  return x - Vec<T>{};  // x - 0 is always x, so the compiler leaves only the broadcast
}

// Scalar conversions, exact or rounded to nearest even.

inline float to_float(BFloat16 x) { return bit_cast<float>(uint32_t{x.bits} << 16); }

inline float to_float(Half x) {
  const uint32_t magnitude = x.bits & 0x7fffU;
  const uint32_t sign = uint32_t{x.bits & 0x8000U} << 16;
  if (magnitude < 0x400U) {  // zero and subnormals: units of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24F;
    return bit_cast<float>(bit_cast<uint32_t>(value) | sign);
  }
  const uint32_t rebias = magnitude >= 0x7c00U ? 0x70000000U : 0x38000000U;
  return bit_cast<float>(((magnitude << 13) + rebias) | sign);
}

inline BFloat16 to_bfloat16(float x) {
  const auto bits = bit_cast<uint32_t>(x);
  if (x != x) return {0x7fc0U};
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

inline Half to_half(float x) {
  const auto bits = bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<uint16_t>(sign | 0x7e00U)};
  if (magnitude >= 0x477ff000U) return {static_cast<uint16_t>(sign | 0x7c00U)};  // rounds to inf
  if (magnitude < 0x38800000U) {  // subnormal: the addition rounds to units of 2^-24
    const float rounded = bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<uint16_t>(sign | (bit_cast<uint32_t>(rounded) - 0x3f000000U))};
  }
  const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U) - 0x38000000U;
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

template <typename T>
inline T widen(T x) {
  return x;
}
inline float widen(Half x) { return to_float(x); }
inline float widen(BFloat16 x) { return to_float(x); }

template <typename T>
inline void narrow(T x, T* to) {
  *to = x;
}
inline void narrow(double x, float* to) { *to = static_cast<float>(x); }
inline void narrow(float x, double* to) { *to = x; }
inline void narrow(float x, Half* to) { *to = to_half(x); }
inline void narrow(float x, BFloat16* to) { *to = to_bfloat16(x); }
inline void narrow(double x, Half* to) { *to = to_half(static_cast<float>(x)); }
inline void narrow(double x, BFloat16* to) { *to = to_bfloat16(static_cast<float>(x)); }

// Loads and stores of a vector, at any alignment. 16-bit and 8-bit elements are converted.

template <typename T>
inline Vec<T> load(const T* from) {
  Vec<T> v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}

/// Loads 16-bit elements, each into the low bits of a 32-bit lane. By intrinsics on x86, because
/// GCC would convert each half of the vector separately.
inline Vec<uint32_t> load_bits(const BFloat16* from) {
#if defined(__AVX512F__)
  const auto bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return bit_cast<Vec<uint32_t>>(_mm512_maskz_cvtepu16_epi32(0xffff, bits));
#elif defined(__AVX2__)
  const auto bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return bit_cast<Vec<uint32_t>>(_mm256_cvtepu16_epi32(bits));
#else
  typedef uint16_t Bits __attribute__((vector_size(kVectorBytes / 2)));
  Bits bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  return __builtin_convertvector(bits, Vec<uint32_t>);
#endif
}

inline Vec<float> load(const BFloat16* from) { return bit_cast<Vec<float>>(load_bits(from) << 16); }

inline Vec<float> load(const Half* from) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
#else
  Vec<float> v;
  for (int lane = 0; lane < kLanes<float>; ++lane) v[lane] = to_float(from[lane]);
  return v;
#endif
}

inline Vec<float> load(const Int8* from) {
#if defined(__AVX512F__)
  const auto numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, numbers));
#elif defined(__AVX2__)
  const auto numbers = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers));
#elif defined(__aarch64__)
  int32_t numbers;
  __builtin_memcpy(&numbers, from, sizeof(numbers));
  const auto bytes = vcreate_s8(static_cast<uint32_t>(numbers));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
#else
  Vec<float> v;
  for (int lane = 0; lane < kLanes<float>; ++lane) v[lane] = from[lane].number;
  return v;
#endif
}

template <typename T>
inline void store(T* to, Vec<T> v) {
  __builtin_memcpy(to, &v, sizeof(v));
}

/// Stores numbers rounded to bfloat16 by operations on integers.
inline void store_rounded_bits(BFloat16* to, Vec<float> v) {
  typedef uint16_t Bits __attribute__((vector_size(kVectorBytes / 2)));
  const auto bits = bit_cast<Vec<uint32_t>>(v);
  const auto rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
  const auto bfloats = __builtin_convertvector(v != v ? broadcast(0x7fc0U) : rounded, Bits);
  __builtin_memcpy(to, &bfloats, sizeof(bfloats));
}

inline void store(BFloat16* to, Vec<float> v) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  const auto bfloats = vcvt_bf16_f32(v);
  __builtin_memcpy(to, &bfloats, sizeof(bfloats));
#elif defined(__AVX512BF16__)
  constexpr int kSubnormal = 0x20;  // which the instruction takes for 0
  if (__builtin_expect(_mm512_fpclass_ps_mask(v, kSubnormal) != 0, 0)) {
    return store_rounded_bits(to, v);
  }
  const auto bfloats = _mm512_cvtneps_pbh(v);
  __builtin_memcpy(to, &bfloats, sizeof(bfloats));
#else
  store_rounded_bits(to, v);
#endif
}

inline void store(Half* to, Vec<float> v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32(v)));
#else
  for (int lane = 0; lane < kLanes<float>; ++lane) to[lane] = to_half(v[lane]);
#endif
}

// Products of bfloat16, by instructions. No kernel calls them unless kMultipliesBFloat16.

/// Lane i: sum[i] + a[i].first * b[i].first + a[i].second * b[i].second. Each lane of a and b is a
/// pair of bfloat16, the first in the low bits.
inline Vec<float> add_pair_products(Vec<float> sum, Vec<uint32_t> a, Vec<uint32_t> b) {
#if defined(__AVX512BF16__)
#if defined(__clang_major__) && (__clang_major__ == 16 || __clang_major__ == 17)
  asm("" : "+v"(a));  // a broadcast as an operand of the instruction crashes these compilers
#endif
  return _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(a), bit_cast<__m512bh>(b));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return vbfdotq_f32(sum, bit_cast<bfloat16x8_t>(a), bit_cast<bfloat16x8_t>(b));
#else
  const auto first = [](Vec<uint32_t> pairs) { return bit_cast<Vec<float>>(pairs << 16); };
  const auto second = [](Vec<uint32_t> pairs) { return bit_cast<Vec<float>>(pairs & 0xffff0000U); };
  return sum + first(a) * first(b) + second(a) * second(b);
#endif
}

/// Multiplies each lane of b by the same pair `a` and adds both products to the lane of `sum`.
inline Vec<float> add_pair_products(Vec<float> sum, uint32_t a, Vec<uint32_t> b) {
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
  const float32x2_t pair = {bit_cast<float>(a), 0};
  return vbfdotq_lane_f32(sum, bit_cast<bfloat16x8_t>(b), bit_cast<bfloat16x4_t>(pair), 0);
#else
  return add_pair_products(sum, broadcast(a), b);
#endif
}

/// Multiplies the four bytes of each lane of b, which are not signed, by those of `a`, which are,
/// and adds the products to the lane of `sum`. By an instruction: no kernel calls it unless
/// kMultipliesBytes.
inline Vec<int32_t> add_byte_products(Vec<int32_t> sum, int32_t a, Vec<int32_t> b) {
#ifdef __AVX512VNNI__
  return bit_cast<Vec<int32_t>>(
      _mm512_dpbusd_epi32(bit_cast<__m512i>(sum), bit_cast<__m512i>(b), _mm512_set1_epi32(a)));
#else
  for (int i = 0; i < 4; ++i) {
    const auto number = static_cast<int8_t>(static_cast<uint32_t>(a) >> 8 * i);
    sum += int32_t{number} * (b >> 8 * i & 0xff);
  }
  return sum;
#endif
}

/// Stores numbers rounded to bfloat16 by the instruction that goes with bfloat16 products. The
/// result can differ from that of `store` only in the sign of 0 and in subnormals.
inline void store_for_products(BFloat16* to, Vec<float> numbers) {
#ifdef __AVX512BF16__
  const auto bfloats = _mm512_cvtneps_pbh(numbers);
  __builtin_memcpy(to, &bfloats, sizeof(bfloats));
#else
  store(to, numbers);
#endif
}

inline void store_for_products(BFloat16* to, Vec<float> first, Vec<float> second) {
#if defined(__AVX512BF16__)
  const auto bfloats = _mm512_cvtne2ps_pbh(second, first);
  __builtin_memcpy(to, &bfloats, sizeof(bfloats));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  const auto bfloats = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(first), second);
  __builtin_memcpy(to, &bfloats, sizeof(bfloats));
#else
  store(to, first);
  store(to + kLanes<float>, second);
#endif
}

/// Lane i: the low 32 bits of x[i] times `factor`, a product of 64 bits.
inline Vec<uint64_t> multiply_low(Vec<uint64_t> x, uint32_t factor) {
#if defined(__AVX512F__)
  return bit_cast<Vec<uint64_t>>(
      _mm512_maskz_mul_epu32(0xff, bit_cast<__m512i>(x), _mm512_set1_epi64(factor)));
#elif defined(__AVX2__)
  return bit_cast<Vec<uint64_t>>(
      _mm256_mul_epu32(bit_cast<__m256i>(x), _mm256_set1_epi64x(factor)));
#elif defined(__SSE2__)
  return bit_cast<Vec<uint64_t>>(_mm_mul_epu32(bit_cast<__m128i>(x), _mm_set1_epi64x(factor)));
#elif defined(__aarch64__)
  return vmull_u32(vmovn_u64(x), vdup_n_u32(factor));
#else
  return (x & 0xffffffffU) * uint64_t{factor};
#endif
}

/// Bit i: whether bytes[i * stride] is not 0, for i < count <= 64.
inline uint64_t nonzero_bytes(const uint8_t* bytes, int64_t stride, int64_t count) {
  uint64_t bits = 0;
#if defined(__AVX512BW__)
  if (stride == 1) {
    const __mmask64 lanes = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    const auto vector = _mm512_maskz_loadu_epi8(lanes, bytes);
    return _mm512_test_epi8_mask(vector, vector);
  }
#elif defined(__AVX2__)
  if (stride == 1 && count == 64) {
    for (int64_t half = 0; half < 2; ++half) {
      const auto vector = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + half * 32));
      const auto zeros = _mm256_cmpeq_epi8(vector, _mm256_setzero_si256());
      bits |= uint64_t{~static_cast<uint32_t>(_mm256_movemask_epi8(zeros))} << (half * 32);
    }
    return bits;
  }
#elif defined(__aarch64__)
  if (stride == 1 && count == 64) {
    const auto bit_of_byte = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201U));
    const auto quarter = [&](int64_t i) {
      const auto vector = vld1q_u8(bytes + i * 16);
      return vandq_u8(vtstq_u8(vector, vector), bit_of_byte);
    };
    const auto low = vpaddq_u8(quarter(0), quarter(1)), high = vpaddq_u8(quarter(2), quarter(3));
    const auto sums = vpaddq_u8(low, high);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
  }
#endif
  for (int64_t i = 0; i < count; ++i) bits |= uint64_t{bytes[i * stride] != 0} << i;
  return bits;
}

/// Lane i: lane from[i] of a, or lane from[i] - kLanes of b if from[i] >= kLanes.
template <typename T, typename Indices>
inline Vec<T> shuffle(Vec<T> a, Vec<T> b, Indices from) {
#ifdef __clang__
  Vec<T> result;
  for (int64_t lane = 0; lane < kLanes<T>; ++lane) {
    result[lane] = from[lane] < kLanes<T> ? a[from[lane]] : b[from[lane] - kLanes<T>];
  }
  return result;
#else
  return __builtin_shuffle(a, b, from);
#endif
}

constexpr int64_t kLine = 64;  // bytes of a cache line

/// Prefetches `Bytes` of memory to the L1 cache (Locality 3) or the L2 cache (2).
template <int64_t Bytes, int Locality>
inline void prefetch(const void* from) {
  for (int64_t i = 0; i < Bytes; i += kLine) {
    __builtin_prefetch(static_cast<const char*>(from) + i, 0, Locality);
  }
}

// Reductions over lanes, as a tree.

/// Combines all lanes of v. The distance of the lanes that are combined halves with each step.

template <typename T, int64_t Distance = kLanes<T> / 2, typename Combine>
inline T reduce(Vec<T> v, const Combine& combine) {
  if constexpr (Distance == 0) {
    return v[0];
  } else {
    decltype(v < v) other;
#pragma GCC unroll 16
    for (int64_t lane = 0; lane < kLanes<T>; ++lane) other[lane] = lane ^ Distance;
    return reduce<T, Distance / 2>(combine(v, shuffle<T>(v, v, other)), combine);
  }
}

template <typename T>
inline T reduce_sum(Vec<T> v) {
  return reduce<T>(v, [](Vec<T> a, Vec<T> b) { return a + b; });
}

/// The larger of both in each lane; `largest` where x is NaN. By one instruction, where GCC would
/// compare and select.
template <typename T>
inline Vec<T> larger(Vec<T> largest, Vec<T> x) {
#ifdef __AVX512F__
  if constexpr (kSame<T, float>) return _mm512_maskz_max_ps(0xffff, x, largest);
  if constexpr (kSame<T, double>) return _mm512_maskz_max_pd(0xff, x, largest);
#endif
  return x > largest ? x : largest;
}

/// The smaller of both in each lane; `smallest` where x is NaN.
inline Vec<float> smaller(Vec<float> smallest, Vec<float> x) {
#ifdef __AVX512F__
  return _mm512_maskz_min_ps(0xffff, x, smallest);
#else
  return x < smallest ? x : smallest;
#endif
}

/// A step of a transposition: in each 2 * Distance lanes, swaps the upper half of a with the lower
/// half of b.
template <typename T, int64_t Distance>
inline void swap_blocks(Vec<T>& a, Vec<T>& b) {
  typedef decltype(a < a) Indices;
  Indices low;
  Indices high;
#pragma GCC unroll 16
  for (int64_t lane = 0; lane < kLanes<T>; ++lane) {
    const bool upper = (lane & Distance) != 0;
    low[lane] = upper ? kLanes<T> + lane - Distance : lane;
    high[lane] = upper ? kLanes<T> + lane : lane + Distance;
  }
  const auto first = shuffle<T>(a, b, low);
  b = shuffle<T>(a, b, high);
  a = first;
}

/// Lane i: all lanes of v[i], combined while the vectors are transposed. Overwrites v.
template <typename T, int64_t Distance = 1, typename Combine>
inline Vec<T> reduce_each(Vec<T>* v, const Combine& combine) {
  if constexpr (Distance == kLanes<T>) {
    return v[0];
  } else {
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes<T>; i += 2 * Distance) {
      swap_blocks<T, Distance>(v[i], v[i + Distance]);
      v[i] = combine(v[i], v[i + Distance]);
    }
    return reduce_each<T, 2 * Distance>(v, combine);
  }
}

}  // namespace heed::detail::HEED_ISA
