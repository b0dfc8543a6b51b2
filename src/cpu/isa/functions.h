// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/simd.h"

/// e^x, tanh x, polynomials and reciprocals of vectors. Only for the sources of this folder.
///
///   shifted = x / ln 2 + round_and_bias          // its low bits: n + bias, n an integer
///   n       = shifted - round_and_bias
///   r       = x - n ln 2                         // |r| <= ln 2 / 2
///   e^x     = 2^n p(r)                           // 2^n: the low bits, shifted to the exponent
///
/// round_and_bias is 1.5 * 2^23 + 127 for float and 1.5 * 2^52 + 1023 for double. A sum so large
/// has no bits for fractions, so the addition rounds x / ln 2 to an integer. 127 and 1023 are the
/// biases of the exponents. exp_unclamped subtracts n ln 2 in two steps, the first of them exact.
///
/// The multiply units bound e^x: a vector of float takes 10 multiplications in exp_unclamped, and
/// 7 in short_exp_unclamped. See docs/kernels.md, "Block", "Speed limit".

namespace heed::detail::HEED_ISA {

// e^x. p is a minimax polynomial for float, with a relative error of 3e-9, and a rational function
// of Cephes (Moshier) for double. The results are within 2 roundoffs (float) or 2.5 (double).
// Results that would be subnormal are 0; inf and NaN are handled as usual.

/// e^x overflows to infinity at this x. exp_unclamped takes no larger x, except for NaN.
template <typename T>
constexpr T kInfiniteExp = sizeof(T) == sizeof(float) ? 89 : 710;

constexpr float kSmallestExponent = -87.3F;
constexpr float kLog2OfE = 1.44269504088896341F;
constexpr float kRoundAndBias = 0x1.8p23F + 127;  // adding it rounds to an integer

/// 0 where x < bound, else `value`.
inline Vec<float> zero_below(float bound, Vec<float> x, Vec<float> value) {
#ifdef __aarch64__
  return vreinterpretq_f32_u32(  // with ?:, GCC would also test both for NaN
      vbicq_u32(vreinterpretq_u32_f32(value), vcltq_f32(x, vdupq_n_f32(bound))));
#else
  return x < bound ? Vec<float>{} : value;
#endif
}

/// c[0] x^(Count - 1) + .. + c[Count - 2] x + c[Count - 1], c being `coefficients`.
template <int64_t Count>
inline Vec<float> polynomial(const float (&coefficients)[Count], Vec<float> x) {
  auto p = broadcast(coefficients[0]);
#pragma GCC unroll 16
  for (int64_t i = 1; i < Count; ++i) p = p * x + coefficients[i];
  return p;
}

/// 2^n p(r), p being the polynomial. The low bits of `shifted` are n + 127.
template <int64_t Count>
inline Vec<float> scaled_polynomial(const float (&coefficients)[Count], Vec<float> r,
                                    Vec<float> shifted) {
  const auto power = bit_cast<Vec<int32_t>>(shifted) << 23;
  return polynomial(coefficients, r) * bit_cast<Vec<float>>(power);
}

/// 1 / x with a relative error of at most 2^-14.
inline Vec<float> short_reciprocal(Vec<float> x) {
#ifdef __AVX512F__
  return _mm512_maskz_rcp14_ps(0xffff, x);
#else
  return 1 / x;
#endif
}

inline Vec<float> exp_unclamped(Vec<float> x) {
  const auto shifted = x * kLog2OfE + kRoundAndBias;
  const auto n = shifted - kRoundAndBias;
  const auto r = x - n * 0.693359375F - n * -2.12194440e-4F;
  constexpr float kCoefficients[] = {1.3814612757E-3F,
                                     8.3687100559E-3F,
                                     4.1668388993E-2F,
                                     1.6666521132E-1F,
                                     4.9999994040E-1F,
                                     1.0F,
                                     1.0F};
  const auto power = scaled_polynomial(kCoefficients, r, shifted);
  return zero_below(kSmallestExponent, x, power);
}

/// e^x with a relative error of 4e-6, for results that are then rounded to bfloat16: its roundoff
/// is about 1000 times as large.
inline Vec<float> short_exp_unclamped(Vec<float> x) {
  const auto shifted = x * kLog2OfE + kRoundAndBias;
  const auto r = x - (shifted - kRoundAndBias) * 0.693147181F;
  constexpr float kCoefficients[] = {4.1513849050E-2F, 1.6787473857E-1F, 5.0003015995E-1F,
                                     9.9996685982E-1F, 1.0F};
  const auto power = scaled_polynomial(kCoefficients, r, shifted);
  return zero_below(kSmallestExponent, x, power);
}

/// 2^x with a relative error of 7.5e-5, for x from -125 to 127. n is added to the exponent of p(r),
/// so that it takes three multiplications.
inline Vec<float> short_exp2_unclamped(Vec<float> x) {
  constexpr float kRound = 0x1.8p23F;
  const auto shifted = x + kRound;
  const auto r = x - (shifted - kRound);
  constexpr float kCoefficients[] = {5.5171669541E-2F, 2.4261112544E-1F, 6.9326098565E-1F,
                                     9.9992807335E-1F};
  const auto n = bit_cast<Vec<int32_t>>(shifted) << 23;
  return bit_cast<Vec<float>>(bit_cast<Vec<int32_t>>(polynomial(kCoefficients, r)) + n);
}

inline Vec<double> exp_unclamped(Vec<double> x) {
  constexpr double kSmallest = -708.0;
  constexpr double kRound = 0x1.8p52 + 1023;
  const auto shifted = x * 1.4426950408889634073599 + kRound;
  const auto n = shifted - kRound;
  const auto r = x - n * 6.93145751953125E-1 - n * 1.42860682030941723212E-6;
  const auto rr = r * r;
  auto p = rr * 1.26177193074810590878E-4 + 3.02994407707441961300E-2;
  p = (p * rr + 9.99999999999999999910E-1) * r;
  auto q = rr * 3.00198505138664455042E-6 + 2.52448340349684104192E-3;
  q = q * rr + 2.27265548208155028766E-1;
  q = q * rr + 2.00000000000000000009E0;
  const auto fraction = 1.0 + 2.0 * p / (q - p);
  const auto power = bit_cast<Vec<int64_t>>(shifted) << 52;
  return x < kSmallest ? Vec<double>{} : fraction * bit_cast<Vec<double>>(power);
}

inline Vec<float> exp(Vec<float> x) {
  return exp_unclamped(x > kInfiniteExp<float> ? broadcast(kInfiniteExp<float>) : x);
}

inline Vec<double> exp(Vec<double> x) {
  return exp_unclamped(x > kInfiniteExp<double> ? broadcast(kInfiniteExp<double>) : x);
}

// tanh x. Near 0 by a polynomial (float) or a rational function (double) in x^2, also of Cephes;
// elsewhere 1 - 2 / (e^2x + 1). The results are within 4 roundoffs.

inline Vec<float> tanh(Vec<float> x) {
  const auto z = x * x;
  auto p = z * -5.70498872745E-3F + 2.06390887954E-2F;
  p = p * z - 5.37397155531E-2F;
  p = p * z + 1.33314422036E-1F;
  p = p * z - 3.33332819422E-1F;
  const auto elsewhere = 1.0F - 2.0F / (exp(x + x) + 1.0F);
  return z < 0.390625F ? p * z * x + x : elsewhere;
}

inline Vec<double> tanh(Vec<double> x) {
  const auto z = x * x;
  auto p = z * -9.64399179425052238628E-1 - 9.92877231001918586564E1;
  p = p * z - 1.61468768441708447952E3;
  auto q = z + 1.12811678491632931402E2;
  q = q * z + 2.23548839060100448583E3;
  q = q * z + 4.84406305325125486048E3;
  const auto elsewhere = 1.0 - 2.0 / (exp(x + x) + 1.0);
  return z < 0.390625 ? p / q * z * x + x : elsewhere;
}

}  // namespace heed::detail::HEED_ISA
