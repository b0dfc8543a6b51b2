// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "json_fields.h"

struct pcre2_real_code_8;  // PCRE2's compiled expression

namespace heed::examples::text {

/// A regular expression of PCRE2, compiled. May be used by several threads at once.
class Regex {
 public:
  /// In the syntax of PCRE2, with as many repetitions as it has at least. Throws
  /// std::runtime_error, without the pattern, when it is not one.
  explicit Regex(const std::string& pattern, int64_t repetitions = 0);

  /// Whether it can match no characters at all.
  bool matches_empty() const;

  /// Calls `report` with the begin and the end of each match in UTF-8 text, from left to right;
  /// matches do not overlap. Throws std::runtime_error when it takes too many steps, see WorkLimit.
  void for_each_match(std::string_view text,
                      const std::function<void(size_t, size_t)>& report) const;

 private:
  std::shared_ptr<pcre2_real_code_8> code_;
  int64_t cost_;  // of one of PCRE2's steps, which may compare as much as the pattern has
};

/// The expression as PCRE2 takes it, for one of the syntax of Oniguruma, which tokenizers uses.
/// Only what means the same in both, or can be spelled otherwise, is translated. What PCRE2 would
/// search without counting its steps is spelled otherwise, or not known. Throws std::runtime_error
/// with what else there is, without the pattern.
Regex from_oniguruma(const std::string& pattern);

/// Calls its second argument with the begin and the end of each match in UTF-8 text, from left to
/// right. Matches are not empty and do not overlap.
using Pattern = std::function<void(std::string_view, const std::function<void(size_t, size_t)>&)>;

/// {"String": ...} or {"Regex": ...}
Pattern read_pattern(const Json& pattern, const std::string& place);

/// Matches each character for which `is` is true.
Pattern each_character(bool (*is)(char32_t));

/// An expression in the syntax of PCRE2.
Pattern each_match(const std::string& regex);

/// A character of a word, \w to Rust's regex, in the syntax of PCRE2 and to be put into brackets.
constexpr const char* kWordCharacters = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}";

}  // namespace heed::examples::text
