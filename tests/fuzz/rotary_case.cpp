// SPDX-License-Identifier: BSD-3-Clause
#include "rotary_case.h"

#include <algorithm>
#include <cmath>

namespace heed::fuzz {

namespace {

constexpr double kFactor = 3.0, kMagnitude = 1.25;
constexpr double kBetaFast = 2.0, kBetaSlow = 0.25;  // turns that these lengths can have
constexpr double kLowFactor = 1.0, kHighFactor = 4.0;
constexpr double kTurn = 6.283185307179586;

double base_of(const Case& c) { return c.S % 3 == 0 ? 10000.0 : c.S % 3 == 1 ? 100.0 : 10.0; }

/// R, above 2 as NTK scaling wants it.
int64_t rotated_of(const Case& c) { return 4 + 2 * (c.D % 3); }

double factor_of_short(int64_t pair) { return 1.0 + 0.25 * static_cast<double>(pair); }
double factor_of_long(int64_t pair) { return 2.0 + 1.5 * static_cast<double>(pair); }

RotaryScaling scaling_of(const Case& c) {
  const auto trained = trained_length(c);
  switch (c.scaling) {
    case kLinear:
      return LinearScaling(kFactor);
    case kNtk:
      return NtkScaling(kFactor);
    case kDynamicNtk:
      return NtkScaling(kFactor).original_length(trained);
    case kYarn:
    case kYarnBetweenPairs:
      return YarnScaling(kFactor, trained)
          .beta_fast(kBetaFast)
          .beta_slow(kBetaSlow)
          .truncate(c.scaling == kYarn);
    case kLlama3:
      return Llama3Scaling(kFactor, trained)
          .low_freq_factor(kLowFactor)
          .high_freq_factor(kHighFactor);
    default: {
      std::vector<double> of_short, of_long;
      for (int64_t pair = 0; pair < rotated_of(c) / 2; ++pair) {
        of_short.push_back(factor_of_short(pair));
        of_long.push_back(factor_of_long(pair));
      }
      return LongRopeScaling(of_short, of_long, trained).attention_factor(kMagnitude);
    }
  }
}

/// The base grows so that the lowest frequency is divided by `factor`.
double ntk_frequency(const Case& c, double exponent, double factor) {
  const auto R = static_cast<double>(rotated_of(c));
  return std::pow(base_of(c) * std::pow(factor, R / (R - 2.0)), -exponent);
}

/// A ramp between the pairs that turn kBetaFast and kBetaSlow times, of whole pairs if truncated.
double yarn_frequency(const Case& c, int64_t pair, double plain) {
  const auto R = static_cast<double>(rotated_of(c));
  const auto pair_of = [&](double turns) {
    const auto period = static_cast<double>(trained_length(c)) / (turns * kTurn);
    return R * std::log(period) / (2.0 * std::log(base_of(c)));
  };
  const bool truncated = c.scaling == kYarn;
  const auto first = pair_of(kBetaFast), last = pair_of(kBetaSlow);
  const auto low = std::max(truncated ? std::floor(first) : first, 0.0);
  const auto high = std::min(truncated ? std::ceil(last) : last, R - 1.0);
  const auto width = high > low ? high - low : 0.001;
  const auto ramp = std::clamp((static_cast<double>(pair) - low) / width, 0.0, 1.0);
  return plain * (1.0 - ramp) + plain / kFactor * ramp;
}

double llama3_frequency(const Case& c, double plain) {
  const auto turns = static_cast<double>(trained_length(c)) * plain / kTurn;
  if (turns < kLowFactor) return plain / kFactor;
  if (turns > kHighFactor) return plain;
  const auto kept = (turns - kLowFactor) / (kHighFactor - kLowFactor);
  return (1.0 - kept) * plain / kFactor + kept * plain;
}

/// The angle by which a pair turns from one position to the next, in a sequence of this length.
double frequency(const Case& c, int64_t pair, int64_t length) {
  const auto exponent = 2.0 * static_cast<double>(pair) / static_cast<double>(rotated_of(c));
  const auto plain = std::pow(base_of(c), -exponent);
  const auto trained = static_cast<double>(trained_length(c));
  switch (c.scaling) {
    case kUnscaled:
      return plain;
    case kLinear:
      return plain / kFactor;
    case kNtk:
      return ntk_frequency(c, exponent, kFactor);
    case kDynamicNtk: {
      const auto beyond = std::max(static_cast<double>(length) / trained, 1.0) - 1.0;
      return ntk_frequency(c, exponent, 1.0 + kFactor * beyond);
    }
    case kYarn:
    case kYarnBetweenPairs:
      return yarn_frequency(c, pair, plain);
    case kLlama3:
      return llama3_frequency(c, plain);
    default:
      return plain / (length > trained_length(c) ? factor_of_long(pair) : factor_of_short(pair));
  }
}

}  // namespace

int64_t trained_length(const Case& c) { return std::max<int64_t>(c.trained, 1); }

int64_t draw_length(const Case& c) {
  return std::max<int64_t>(trained_length(c) + draw_below(5) - 2, 1);
}

RotaryEmbeddingOptions scaled_rotary(const Case& c) {
  const auto R = rotated_of(c);
  RotaryEmbeddingOptions options(c.rotary == 3 ? R + 3 : R);
  if (c.rotary == 3) options.rotary_dim(R);
  if (c.rotary == 2) options.pairing(RotaryPairing::interleaved);
  if (c.scaling != kUnscaled) options.scaling(scaling_of(c));
  return options.base(base_of(c));
}

bool is_rotated_alike(const Case& c, int64_t a, int64_t b) {
  const auto trained = trained_length(c);
  if (c.scaling == kDynamicNtk) return std::max(a, trained) == std::max(b, trained);
  return c.scaling < kLongRope || (a > trained) == (b > trained);
}

double magnitude(const Case& c) {
  if (c.scaling == kYarn || c.scaling == kYarnBetweenPairs) return 0.1 * std::log(kFactor) + 1.0;
  return c.scaling < kLongRope ? 1.0 : kMagnitude;
}

at::Tensor rotate_scaled(const Case& c, const at::Tensor& x, const Integers& positions,
                         const Integers& lengths) {
  const auto result = x.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
  auto* const numbers = result.mutable_data_ptr<double>();
  const auto H = x.size(0), L = x.size(1), D = x.size(2), pairs = rotated_of(c) / 2;
  for (int64_t i = 0; i < H * L; ++i) {
    const auto token = static_cast<size_t>(i % L);
    auto* const row = numbers + i * D;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const auto angle = static_cast<double>(positions[token]) * frequency(c, pair, lengths[token]);
      auto& first = row[c.rotary == 2 ? 2 * pair : pair];
      auto& second = row[c.rotary == 2 ? 2 * pair + 1 : pair + pairs];
      const auto a = first * magnitude(c), b = second * magnitude(c);
      first = a * std::cos(angle) - b * std::sin(angle);
      second = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  return result;
}

}  // namespace heed::fuzz
