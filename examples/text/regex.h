#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace heed::examples::text {

/// A regular expression of PCRE2, compiled. May be used by several threads at once.
class Regex {
 public:
  /// In the syntax of PCRE2. Throws std::runtime_error, without the pattern, when it is not one.
  explicit Regex(const std::string& pattern);

  /// Whether it can match no characters at all.
  bool matches_empty() const;

  /// Calls `report` with the begin and the end of each match in UTF-8 text, from left to right;
  /// matches do not overlap. Throws std::runtime_error when a search takes too many steps.
  void for_each_match(std::string_view text,
                      const std::function<void(size_t, size_t)>& report) const;

 private:
  std::shared_ptr<void> code_;
};

/// The expression as PCRE2 spells it, for one of the syntax of Oniguruma, which tokenizers uses.
/// Only what means the same in both, or can be spelled otherwise, is translated. Throws
/// std::runtime_error with what else there is, without the pattern.
std::string from_oniguruma(const std::string& pattern);

}  // namespace heed::examples::text
