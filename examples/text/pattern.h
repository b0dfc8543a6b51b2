#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "json_fields.h"

namespace heed::examples::text {

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
