// SPDX-License-Identifier: BSD-3-Clause
#include "pattern.h"

#include <stdexcept>
#include <utility>

#include "unicode.h"
#include "work_limit.h"

namespace heed::examples::text {

namespace {

constexpr size_t kLongestPattern = 4096;

Pattern each_occurrence(std::string literal) {
  return [literal = std::move(literal)](std::string_view text, const auto& report) {
    WorkLimit::spend(static_cast<int64_t>(text.size()));
    for (auto begin = text.find(literal); begin != std::string_view::npos;) {
      const auto end = begin + literal.size();
      report(begin, end);
      begin = text.find(literal, end);
    }
  };
}

Pattern matches_of(const Regex& regex) {
  return [regex](std::string_view text, const auto& report) { regex.for_each_match(text, report); };
}

Pattern compile(const Json& pattern, const std::string& place) {
  try {
    const auto regex = from_oniguruma(text_of(pattern, place));
    if (!regex.matches_empty()) return matches_of(regex);
  } catch (const std::runtime_error& error) {
    refuse(place, pattern, error.what());
  }
  refuse(place, pattern, "must not match the empty text");
}

}  // namespace

Pattern read_pattern(const Json& pattern, const std::string& place) {
  JsonFields fields(pattern, place);
  const bool is_regex = fields.find("Regex") != nullptr;
  const auto* name = is_regex ? "Regex" : "String";
  const auto text = fields.text(name);
  if (text.empty() || text.size() > kLongestPattern) {
    refuse(fields.place_of(name), fields.at(name),
           "must have 1 to " + std::to_string(kLongestPattern) + " bytes");
  }
  fields.expect_no_others();
  return is_regex ? compile(fields.at(name), fields.place_of(name)) : each_occurrence(text);
}

Pattern each_match(const std::string& regex) { return matches_of(Regex(regex)); }

Pattern each_character(bool (*is)(char32_t)) {
  return [is](std::string_view text, const auto& report) {
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
      if (is(next_character(text, end))) report(begin, end);
    }
  };
}

}  // namespace heed::examples::text
