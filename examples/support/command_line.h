// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <system_error>
#include <vector>

#include "run_main.h"

// CLI11's own validators accept NaN, and its conversions wrap numbers that are too large and read
// 010 as 8.

namespace heed::examples {

template <typename Number>
CLI::Validator whole_number_of(Number least, Number most) {
  const auto from = "from " + std::to_string(least);
  return {[=](std::string& text) -> std::string {
            Number value{};
            const auto* end = text.data() + text.size();
            const auto [last, error] = std::from_chars(text.data(), end, value);
            if (error != std::errc() || last != end || value < least || value > most) {
              return "must be a whole number " + from + " to " + std::to_string(most) + ", not " +
                     text;
            }
            text = std::to_string(value);
            return "";
          },
          from};
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

inline CLI::Validator finite() {
  return number("finite", [](double) { return true; });
}

inline CLI::Validator learning_rate() {
  return number("above 0 and at most 1e30", [](double rate) { return rate > 0 && rate <= 1e30; });
}

/// A number from 0 to 1.
inline CLI::Validator share() {
  return number("from 0 to 1", [](double value) { return value >= 0 && value <= 1; });
}

inline CLI::Validator not_empty() {
  const auto check = [](const std::string& text) {
    return text.empty() ? "must not be empty" : "";
  };
  return {check, ""};
}

/// The command line of a program. Its help shows the defaults.
class CommandLine : public CLI::App {
 public:
  /// The descriptions of the options begin at `column`.
  CommandLine(const std::string& description, const std::string& program, size_t column = 34)
      : App(description, program) {
    option_defaults()->always_capture_default();
    get_formatter()->column_width(column);
  }

  /// Parses the arguments, then runs the body of the program with run_main.
  template <typename Body>
  int run(int argc, char** argv, Body&& body) {
    return run_main(get_name(), [&]() -> int {
      CLI11_PARSE(*this, argc, argv);
      return body();
    });
  }

  template <typename Value>
  CLI::Option* add(const std::string& name, Value& value, const std::string& about,
                   const CLI::Validator& valid) {
    return add_option(name, value, about)->check(valid);
  }
  /// Sums and products of a few such numbers stay within int64.
  template <typename Number>
  CLI::Option* whole_number(const std::string& name, Number& value, const std::string& about,
                            int64_t least, int64_t most = 1'000'000'000'000'000) {
    return add(name, value, about, whole_number_of(least, most));
  }
  CLI::Option* choice(const std::string& name, std::string& value, const std::string& about,
                      const std::vector<std::string>& choices) {
    return add(name, value, about, CLI::IsMember(choices));
  }
  CLI::Option* device(std::string& device, const std::string& about) {
    return choice("--device", device, about, {"cpu", "cuda"});
  }
  CLI::Option* file(const std::string& name, std::string& path, const std::string& about) {
    return this->path(name, path, about)->type_name("FILE");
  }
  CLI::Option* folder(const std::string& name, std::string& path, const std::string& about) {
    return this->path(name, path, about)->type_name("DIR");
  }
  /// A file or a folder.
  CLI::Option* path(const std::string& name, std::string& path, const std::string& about) {
    return add(name, path, about, not_empty())->type_name("PATH");
  }
};

}  // namespace heed::examples
