// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/isa/functions.h"
#include "cpu/isa/packed.h"

/// The functions that `finish` can apply to outputs. Only for the sources of this folder.
///
///   gelu           x Phi(x),  Phi(-x) = erfc(x / sqrt 2) / 2
///   gelu_tanh      x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
///   gelu_sigmoid   x sigmoid(1.702 x)
///   silu           x sigmoid(x)
///
/// If Short, results have an error of at most 1.2e-3 of themselves, about a quarter of the smallest
/// distance of neighbors in bfloat16, to which they are rounded then, and sigmoids are computed
/// from powers of two. The multiply units bound all of them: a vector of gelu takes 22
/// multiplications and a division, or 10 if Short.

namespace heed::detail::HEED_ISA {

/// The unit of times_sigmoid's argument, which is an exponent of 2 if Short, else of e.
template <bool Short>
constexpr float kSigmoidUnit = Short ? kLog2OfE : 1;

/// x sigmoid(-minus_u / kSigmoidUnit).
template <bool Short>
inline Vec<float> times_sigmoid(Vec<float> x, Vec<float> minus_u) {
  if constexpr (Short) {
    constexpr float kSmallest = -125, kLargest = 126.9F;  // 2^x is normal, and 2^-125 + 1 is 1
    const auto bounded = larger<float>(broadcast(kSmallest), smaller(broadcast(kLargest), minus_u));
    return x * short_reciprocal(short_exp2_unclamped(bounded) + 1);
  }
  return x / (exp(minus_u) + 1);
}

struct Unchanged {
  template <bool Short>
  static Vec<float> of(Vec<float> x) {
    return x;
  }
};

struct Relu {
  template <bool Short>
  static Vec<float> of(Vec<float> x) {
    return x < 0 ? Vec<float>{} : x;  // NaN stays
  }
};

struct Tanh {
  template <bool Short>
  static Vec<float> of(Vec<float> x) {
    return tanh(x);
  }
};

struct Silu {
  template <bool Short>
  static Vec<float> of(Vec<float> x) {
    return times_sigmoid<Short>(x, x * -kSigmoidUnit<Short>);
  }
};

struct GeluSigmoid {
  template <bool Short>
  static Vec<float> of(Vec<float> x) {
    return times_sigmoid<Short>(x, x * (-1.702F * kSigmoidUnit<Short>));
  }
};

struct GeluTanh {
  template <bool Short>
  static Vec<float> of(Vec<float> x) {
    constexpr float kCubic = 0.044715F;
    constexpr float kFactor = -1.5957691216F * kSigmoidUnit<Short>;  // -2 sqrt(2 / pi)
    return times_sigmoid<Short>(x, x * (x * x * kCubic + 1) * kFactor);
  }
};

struct Gelu {
  template <bool Short>
  static Vec<float> of(Vec<float> x) {
    if constexpr (Short) return short_of(x);
    constexpr float kHalfRoot = 0.70710678118654752F;
    const auto scaled = x * kHalfRoot;
    const auto below = half_erfc(scaled < 0 ? -scaled : scaled);
    return x * (x < 0 ? below : 1 - below);
  }

 private:
  /// erfc(a) / 2 for a >= 0, with a relative error of 1.2e-7 beside those of its additions. Press
  /// et al., Numerical Recipes in C, 1992, section 6.2: t exp(-a^2 + p(t)), t = 1 / (1 + a / 2).
  static Vec<float> half_erfc(Vec<float> a) {
    constexpr float kCoefficients[] = {0.17087277F, -0.82215223F, 1.48851587F, -1.13520398F,
                                       0.27886807F, -0.18628806F, 0.09678418F, 0.37409196F,
                                       1.00002368F, -1.26551223F};
    const auto t = 1 / (a * 0.5F + 1);
    return t * 0.5F * exp_unclamped(polynomial(kCoefficients, t) - a * a);
  }

  /// x sigmoid(x p(x^2)). p is a minimax polynomial of log2(Phi(x) / Phi(-x)) / x for |x| <= 5.2.
  static Vec<float> short_of(Vec<float> x) {
    constexpr float kCoefficients[] = {-3.03952890E-8F, -1.16994600E-5F, 1.40796349E-3F,
                                       -1.09378285E-1F, -2.29741338F};
    return times_sigmoid<true>(x, x * polynomial(kCoefficients, x * x));
  }
};

/// Calls visit with the function.
template <typename Visit>
inline void with_function(OutputFunction function, const Visit& visit) {
  switch (function) {
    case OutputFunction::identity:
      return visit(Unchanged{});
    case OutputFunction::relu:
      return visit(Relu{});
    case OutputFunction::gelu:
      return visit(Gelu{});
    case OutputFunction::gelu_tanh:
      return visit(GeluTanh{});
    case OutputFunction::gelu_sigmoid:
      return visit(GeluSigmoid{});
    case OutputFunction::silu:
      return visit(Silu{});
    case OutputFunction::tanh:
      return visit(Tanh{});
  }
}

}  // namespace heed::detail::HEED_ISA
