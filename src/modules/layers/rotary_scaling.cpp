// SPDX-License-Identifier: BSD-3-Clause
#include "modules/layers/rotary_scaling.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/checks.h"
#include "core/to_device.h"
#include "modules/layers/yarn.h"

namespace heed::detail {

namespace {

constexpr double kTwoPi = 6.283185307179586;

/// The unscaled frequencies base^(-2 i / R), from which each scaling computes its own. They are
/// float64: in float32, one rounding of a frequency or an angle turns a pair by 0.03 at position
/// 1,000,000.
struct Frequencies {
  double base;
  int64_t dim;  // R: the number of elements that are rotated

  at::Tensor inverse(double with_base) const {
    return at::pow(with_base, at::arange(0, dim, 2, at::kDouble) / static_cast<double>(dim));
  }
  at::Tensor unscaled() const { return 1.0 / inverse(base); }
  at::Tensor ntk(double factor) const {
    return 1.0 / inverse(base * std::pow(factor, ntk_exponent()));
  }
  /// Returns the frequencies of NTK scaling for factors [.., 1]: [.., R / 2].
  at::Tensor ntk(const at::Tensor& factors) const {
    const auto exponents = at::arange(0, dim, 2, factors.options()) / static_cast<double>(dim);
    return 1.0 / at::pow(base * at::pow(factors, ntk_exponent()), exponents);
  }
  double ntk_exponent() const { return static_cast<double>(dim) / static_cast<double>(dim - 2); }
  at::Tensor divided(const std::vector<double>& factors) const {
    return unscaled() / at::tensor(factors, at::kDouble);
  }
};

/// Scaled frequencies [.., R / 2] of sequences with lengths float64 [.., 1], for scalings that
/// depend on the length. Lengths are not read on the host, which would wait for their device.
/// @{
at::Tensor scale(const Frequencies& original, const NtkScaling& scaling,
                 const at::Tensor& lengths) {
  const auto trained = static_cast<double>(scaling.original_length().value_or(0));
  return original.ntk(scaling.factor() * lengths.clamp_min(trained) / trained -
                      (scaling.factor() - 1.0));
}

at::Tensor scale(const Frequencies& original, const LongRopeScaling& scaling,
                 const at::Tensor& lengths) {
  const auto divided = [&](const std::vector<double>& factors) {
    return to_device(original.divided(factors), lengths.device());
  };
  return at::where(lengths > static_cast<double>(scaling.original_length()),
                   divided(scaling.long_factors()), divided(scaling.short_factors()));
}
/// @}

/// Scaled frequencies [R / 2]; undefined if they depend on the length.
/// @{
at::Tensor scale(const Frequencies& original, const LinearScaling& scaling) {
  return original.unscaled() / scaling.factor();
}

at::Tensor scale(const Frequencies& original, const NtkScaling& scaling) {
  return scaling.original_length() ? at::Tensor() : original.ntk(scaling.factor());
}

at::Tensor scale(const Frequencies& original, const YarnScaling& scaling) {
  // The number of the pair that turns `turns` times within the original length.
  const auto pair = [&](double turns) {
    const auto length = static_cast<double>(scaling.original_length());
    return static_cast<double>(original.dim) * std::log(length / (turns * kTwoPi)) /
           (2.0 * std::log(original.base));
  };
  const auto fast = pair(scaling.beta_fast()), slow = pair(scaling.beta_slow());
  const auto last = static_cast<double>(original.dim - 1);
  const double low = std::max(scaling.truncate() ? std::floor(fast) : fast, 0.0);
  const double high = std::min(scaling.truncate() ? std::ceil(slow) : slow, last);
  const double width = low == high ? 0.001 : high - low;
  const auto kept =
      1.0 - ((at::arange(original.dim / 2, at::kDouble) - low) / width).clamp(0.0, 1.0);
  const auto inverse = original.inverse(original.base);
  return 1.0 / (scaling.factor() * inverse) * (1.0 - kept) + 1.0 / inverse * kept;
}

at::Tensor scale(const Frequencies& original, const Llama3Scaling& scaling) {
  const auto frequencies = original.unscaled();
  const auto length = static_cast<double>(scaling.original_length());
  const auto wavelengths = kTwoPi / frequencies;
  const auto divided = frequencies / scaling.factor();
  const auto kept = (length / wavelengths - scaling.low_freq_factor()) /
                    (scaling.high_freq_factor() - scaling.low_freq_factor());
  const auto ramp = (1.0 - kept) * divided + kept * frequencies;
  const auto scaled = at::where(wavelengths > length / scaling.low_freq_factor(), divided, ramp);
  return at::where(wavelengths < length / scaling.high_freq_factor(), frequencies, scaled);
}

at::Tensor scale(const Frequencies& /*original*/, const LongRopeScaling& /*scaling*/) { return {}; }
/// @}

void check_factor(double factor) {
  HEED_CHECK(std::isfinite(factor) && factor >= 1.0,
             "{}: scaling factor ({}) must be finite and at least 1", kRotaryEmbedding, factor);
}

void check(const LinearScaling& scaling) { check_factor(scaling.factor()); }

void check(const NtkScaling& scaling) {
  check_factor(scaling.factor());
  check_positive(kRotaryEmbedding, "original_length", scaling.original_length().value_or(1));
}

void check(const YarnScaling& scaling) {
  check_factor(scaling.factor());
  check_positive(kRotaryEmbedding, "original_length", scaling.original_length());
  HEED_CHECK(scaling.beta_slow() > 0.0 && scaling.beta_fast() > scaling.beta_slow(),
             "{}: beta_fast ({}) must be above beta_slow ({}), and both above 0", kRotaryEmbedding,
             scaling.beta_fast(), scaling.beta_slow());
  for (const auto& [name, scale] : {std::pair{"mscale", scaling.mscale()},
                                    std::pair{"mscale_all_dim", scaling.mscale_all_dim()}}) {
    HEED_CHECK(std::isfinite(scale) && scale >= 0.0, "{}: {} ({}) must be finite and at least 0",
               kRotaryEmbedding, name, scale);
  }
}

void check(const Llama3Scaling& scaling) {
  check_factor(scaling.factor());
  check_positive(kRotaryEmbedding, "original_length", scaling.original_length());
  HEED_CHECK(
      scaling.low_freq_factor() > 0.0 && scaling.high_freq_factor() > scaling.low_freq_factor(),
      "{}: high_freq_factor ({}) must be above low_freq_factor ({}), and both above 0",
      kRotaryEmbedding, scaling.high_freq_factor(), scaling.low_freq_factor());
}

void check(const LongRopeScaling& scaling) {
  check_positive(kRotaryEmbedding, "original_length", scaling.original_length());
  for (const auto& [name, factors] : {std::pair{"short_factors", &scaling.short_factors()},
                                      std::pair{"long_factors", &scaling.long_factors()}}) {
    for (const auto factor : *factors) {
      HEED_CHECK(std::isfinite(factor) && factor > 0.0, "{}: {} ({}) must be finite and above 0",
                 kRotaryEmbedding, name, factor);
    }
  }
  HEED_CHECK(std::isfinite(scaling.attention_factor()) && scaling.attention_factor() > 0.0,
             "{}: attention_factor ({}) must be finite and above 0", kRotaryEmbedding,
             scaling.attention_factor());
}

/// Checks that there is one factor for each pair.
void check_pairs(const char* name, const std::vector<double>& factors, int64_t dim) {
  HEED_CHECK(static_cast<int64_t>(factors.size()) == dim / 2,
             "{}: {} size ({}) must equal half of rotary_dim ({})", kRotaryEmbedding, name,
             factors.size(), dim);
}

void print(std::ostream& stream, const LinearScaling& scaling) {
  stream << "linear(factor=" << scaling.factor() << ")";
}

void print(std::ostream& stream, const NtkScaling& scaling) {
  stream << "ntk(factor=" << scaling.factor();
  if (const auto length = scaling.original_length()) stream << ", original_length=" << *length;
  stream << ")";
}

void print(std::ostream& stream, const YarnScaling& scaling) {
  stream << "yarn(factor=" << scaling.factor() << ", original_length=" << scaling.original_length()
         << ", beta_fast=" << scaling.beta_fast() << ", beta_slow=" << scaling.beta_slow();
  if (!scaling.truncate()) stream << ", truncate=false";
  if (const auto factor = scaling.attention_factor()) stream << ", attention_factor=" << *factor;
  if (scaling.mscale() != 0.0) stream << ", mscale=" << scaling.mscale();
  if (scaling.mscale_all_dim() != 0.0) stream << ", mscale_all_dim=" << scaling.mscale_all_dim();
  stream << ")";
}

void print(std::ostream& stream, const Llama3Scaling& scaling) {
  stream << "llama3(factor=" << scaling.factor()
         << ", original_length=" << scaling.original_length()
         << ", low_freq_factor=" << scaling.low_freq_factor()
         << ", high_freq_factor=" << scaling.high_freq_factor() << ")";
}

void print(std::ostream& stream, const LongRopeScaling& scaling) {
  stream << "longrope(short_factors=" << c10::str(at::ArrayRef<double>(scaling.short_factors()))
         << ", long_factors=" << c10::str(at::ArrayRef<double>(scaling.long_factors()))
         << ", original_length=" << scaling.original_length()
         << ", attention_factor=" << scaling.attention_factor() << ")";
}

/// The options by which two scalings of one kind are compared.
/// @{
auto parts(const LinearScaling& scaling) { return std::tuple(scaling.factor()); }
auto parts(const NtkScaling& scaling) {
  return std::tuple(scaling.factor(), scaling.original_length());
}
auto parts(const YarnScaling& scaling) {
  return std::tuple(scaling.factor(), scaling.original_length(), scaling.beta_fast(),
                    scaling.beta_slow(), scaling.truncate(), scaling.attention_factor(),
                    scaling.mscale(), scaling.mscale_all_dim());
}
auto parts(const Llama3Scaling& scaling) {
  return std::tuple(scaling.factor(), scaling.original_length(), scaling.low_freq_factor(),
                    scaling.high_freq_factor());
}
auto parts(const LongRopeScaling& scaling) {
  return std::tuple(scaling.short_factors(), scaling.long_factors(), scaling.original_length(),
                    scaling.attention_factor());
}
/// @}

}  // namespace

at::Tensor rotary_frequencies(double base, int64_t dim,
                              const std::optional<RotaryScaling>& scaling) {
  const Frequencies original{base, dim};
  if (!scaling) return original.unscaled();
  return std::visit([&](const auto& s) { return scale(original, s); }, *scaling);
}

at::Tensor rotary_frequencies(double base, int64_t dim, const RotaryScaling& scaling,
                              const at::Tensor& lengths) {
  const Frequencies original{base, dim};
  if (const auto* ntk = std::get_if<NtkScaling>(&scaling)) return scale(original, *ntk, lengths);
  return scale(original, std::get<LongRopeScaling>(scaling), lengths);
}

void check_scaling(const RotaryEmbeddingOptions& options, int64_t dim) {
  if (!options.scaling()) return;
  std::visit([](const auto& s) { check(s); }, *options.scaling());
  if (std::holds_alternative<NtkScaling>(*options.scaling())) {
    HEED_CHECK(dim > 2, "{}: rotary_dim ({}) must be above 2 for NTK scaling", kRotaryEmbedding,
               dim);
    for (const auto pairs : options.sections()) {
      HEED_CHECK(pairs > 1 || !options.restart_sections(),
                 "{}: sections ({}) that restart must be above 1 for NTK scaling", kRotaryEmbedding,
                 pairs);
    }
  }
  if (const auto* longrope = std::get_if<LongRopeScaling>(&*options.scaling())) {
    check_pairs("short_factors", longrope->short_factors(), dim);
    check_pairs("long_factors", longrope->long_factors(), dim);
  }
}

double attention_factor(const RotaryScaling& any) {
  if (const auto* longrope = std::get_if<LongRopeScaling>(&any)) {
    return longrope->attention_factor();
  }
  if (!std::holds_alternative<YarnScaling>(any)) return 1.0;
  const auto& scaling = std::get<YarnScaling>(any);
  if (const auto factor = scaling.attention_factor()) return *factor;
  if (scaling.mscale() == 0.0 || scaling.mscale_all_dim() == 0.0) {
    return yarn_magnitude(scaling, 1.0);
  }
  return yarn_magnitude(scaling, scaling.mscale()) /
         yarn_magnitude(scaling, scaling.mscale_all_dim());
}

bool are_equal(const RotaryScaling& a, const RotaryScaling& b) {
  return a.index() == b.index() && std::visit(
                                       [&](const auto& one) {
                                         using Scaling = std::decay_t<decltype(one)>;
                                         return parts(one) == parts(std::get<Scaling>(b));
                                       },
                                       a);
}

std::string printed(const RotaryScaling& scaling) {
  std::ostringstream text;
  std::visit([&](const auto& s) { print(text, s); }, scaling);
  return text.str();
}

}  // namespace heed::detail
