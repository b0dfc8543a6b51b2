#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <system_error>

// CLI11's own validators accept NaN, and its conversions wrap numbers that are too large and read
// 010 as 8.

namespace heed::examples {

template <typename Number>
CLI::Validator whole_number_of(Number least, Number most) {
  return {[=](std::string& text) -> std::string {
            Number value{};
            const auto* end = text.data() + text.size();
            const auto [last, error] = std::from_chars(text.data(), end, value);
            if (error != std::errc() || last != end || value < least || value > most) {
              return fmt::format("must be a whole number from {} to {}, not {}", least, most, text);
            }
            text = std::to_string(value);
            return "";
          },
          fmt::format("from {}", least)};
}

/// Sums and products of a few of them stay within int64.
inline CLI::Validator whole_number(int64_t least, int64_t most = 1'000'000'000'000'000) {
  return whole_number_of(least, most);
}

inline CLI::Validator seed() {
  return whole_number_of<uint64_t>(0, std::numeric_limits<uint64_t>::max());
}

/// A finite number for which `accepts` returns true; `rule` describes such numbers in errors.
template <typename Accepts>
CLI::Validator number(const std::string& rule, Accepts accepts) {
  return {[=](const std::string& text) -> std::string {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            const bool is_number = !text.empty() && *end == '\0' && std::isfinite(value);
            return is_number && accepts(value) ? "" : "must be " + rule + ", not " + text;
          },
          rule};
}

inline CLI::Validator above_zero() {
  return number("above 0", [](double value) { return value > 0; });
}

inline CLI::Validator learning_rate() {
  return number("above 0 and at most 1e30", [](double rate) { return rate > 0 && rate <= 1e30; });
}

inline CLI::Validator at_least_zero() {
  return number("at least 0", [](double value) { return value >= 0; });
}

/// A number from 0 to 1.
inline CLI::Validator share() {
  return number("from 0 to 1", [](double value) { return value >= 0 && value <= 1; });
}

/// The name of a file or folder.
inline CLI::Validator path() {
  return {[](const std::string& text) { return text.empty() ? "must not be empty" : ""; }, ""};
}

}  // namespace heed::examples
