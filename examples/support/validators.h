#pragma once

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>

// CLI11's own validators of signs say the range of a double.

namespace heed::examples {

inline CLI::Validator above_zero() {
  return {[](const std::string& text) {
            return std::strtod(text.c_str(), nullptr) > 0 ? "" : "must be above 0, not " + text;
          },
          "POSITIVE"};
}

inline CLI::Validator at_least_zero() {
  return {[](const std::string& text) {
            return std::strtod(text.c_str(), nullptr) >= 0 ? "" : "must be at least 0, not " + text;
          },
          "NONNEGATIVE"};
}

}  // namespace heed::examples
