// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <optional>
#include <stdexcept>

#include "pattern.h"
#include "unicode.h"

namespace heed::examples::text {

namespace {

constexpr int kDeepestGroup = 50;
constexpr int kMostRepetitions = 1000;

// Unicode's White_Space. PCRE2's \s has U+180E too.
constexpr const char* kSpaces = "\\t-\\r\\x{85}\\p{Z}";

constexpr std::array kCategories = {"L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",  "Mc", "Me", "Mn",
                                    "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi",
                                    "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp",
                                    "Zs", "C",  "Cc", "Cf", "Cn", "Co", "Cs"};
constexpr std::array kScripts = {"Arabic", "Armenian", "Bengali", "Cyrillic", "Devanagari",
                                 "Greek",  "Han",      "Hangul",  "Hebrew",   "Hiragana",
                                 "Latin",  "Katakana", "Tamil",   "Telugu",   "Thai"};

// Without regard to case, Oniguruma takes these for one character too: "ss" for U+00DF.
constexpr std::array kFoldedPairs = {"ff", "fi", "fl", "ss", "st"};

[[noreturn]] void refuse_syntax(const std::string& what) {
  throw std::runtime_error("has " + what + ", which is not known here");
}

bool is_ascii_punctuation(char32_t character) {
  return character < 0x80 && std::ispunct(static_cast<int>(character)) != 0;
}

/// Reads an expression from left to right and writes the other.
class Translation {
 public:
  explicit Translation(std::string_view pattern) : left_(pattern) {}

  Regex run() {
    alternatives();
    if (!left_.empty()) refuse_syntax("a ) without its (");
    return Regex(result_, repetitions_);
  }

 private:
  bool next_is(std::string_view expected) const {
    return left_.substr(0, expected.size()) == expected;
  }
  bool next_is_one_of(std::string_view characters) const {
    return !left_.empty() && characters.find(left_[0]) != std::string_view::npos;
  }
  bool take(std::string_view expected) {
    if (!next_is(expected)) return false;
    left_.remove_prefix(expected.size());
    return true;
  }
  char32_t take_character() {
    if (left_.empty()) refuse_syntax("an end that comes too early");
    size_t size = 0;
    const auto character = next_character(left_, size);
    left_.remove_prefix(size);
    return character;
  }

  void write_literal(char32_t character) {
    if (character < U' ' || character == 0x7F) {
      std::array<char, 8> digits{};
      const auto end = std::to_chars(digits.begin(), digits.end(), uint32_t{character}, 16).ptr;
      result_ += "\\x{" + std::string(digits.begin(), end) + "}";
      return;
    }
    if (is_ascii_punctuation(character)) result_ += '\\';
    append_character(character, result_);
  }

  void alternatives() {
    do {
      before_.reset();
      while (!left_.empty() && !next_is_one_of("|)")) atom();
      if (next_is("|")) result_ += '|';
    } while (take("|"));
  }

  void atom() {
    if (next_is("(")) {
      group();
      return;
    }
    const auto begin = result_.size();
    if (take("[")) {
      note_folded(std::nullopt);
      character_class();
    } else if (take(".")) {
      note_folded(std::nullopt);
      result_ += "[^\\n]";
    } else if (take("\\")) {
      const auto character = escape(false);
      note_folded(character);
      if (character) write_literal(*character);
    } else if (next_is_one_of("^$*+?{")) {
      refuse_syntax(std::string(1, left_[0]) + " here");
    } else {
      const auto character = take_character();
      note_folded(character);
      write_literal(character);
    }
    quantifier(begin);
  }

  void group() {
    if (folds_ || ++depth_ > kDeepestGroup) refuse_syntax("a group here");
    const bool looks = next_is("(?=") || next_is("(?!");
    if (looks) {
      result_ += left_.substr(0, 3);
      left_.remove_prefix(3);
    } else if (take("(?i:")) {
      result_ += "(?i:";
      folds_ = true;
    } else {
      const bool plain = take("(?:") || take("(");
      if (!plain || next_is_one_of("?*")) refuse_syntax("a group here");
      result_ += "(?:";
    }
    lookaheads_ += looks ? 1 : 0;
    alternatives();
    lookaheads_ -= looks ? 1 : 0;
    if (!take(")")) refuse_syntax("a ( without its )");
    result_ += ')';
    folds_ = false;
    --depth_;
    if (!looks) quantifier(std::nullopt);
    if (looks && next_is_one_of("*+?{")) refuse_syntax("a repeated lookahead");
  }

  /// Translates the quantifier of what begins in the result at `begin`, or of a group.
  void quantifier(std::optional<size_t> begin) {
    if (!next_is_one_of("*+?{")) return;
    if (folds_) refuse_syntax("a repetition within (?i:");
    const bool repeats = !next_is("?");
    if (repeats && lookaheads_ > 0) refuse_syntax("a repetition within a lookahead");
    if (take("{")) {
      bounds();
    } else {
      const auto atom = begin ? result_.substr(*begin) : "";
      result_ += static_cast<char>(take_character());
      if (repeats && take("+")) {
        // PCRE2 does not count what it repeats without going back. This matches the same.
        if (!begin) refuse_syntax("a group repeated with a + behind");
        result_ += "(?!" + atom + ")";
      } else if (next_is_one_of("+?")) {
        result_ += static_cast<char>(take_character());
      }
    }
    // Here the two differ: {2}+ is {2} once or more to Oniguruma.
    if (next_is_one_of("*+?{")) refuse_syntax("a repeated repetition");
  }

  /// {2}, {2,}, {,3} or {2,3}, behind the brace.
  void bounds() {
    const auto least = number();
    const bool ranges = take(",");
    const auto most = ranges ? number() : least;
    if (!take("}") || (!least && !most) || (least && most && *least > *most)) {
      refuse_syntax("a { that begins no repetition");
    }
    repetitions_ += least.value_or(0);
    result_ += "{" + std::to_string(least.value_or(0));
    if (ranges) result_ += "," + (most ? std::to_string(*most) : "");
    result_ += '}';
  }

  std::optional<int> number() {
    if (!next_is_one_of("0123456789")) return std::nullopt;
    int value = kMostRepetitions + 1;  // as it stays if it is larger than an int
    const auto* end = std::from_chars(left_.data(), left_.data() + left_.size(), value).ptr;
    if (value > kMostRepetitions) {
      refuse_syntax("more than " + std::to_string(kMostRepetitions) + " repetitions");
    }
    left_.remove_prefix(static_cast<size_t>(end - left_.data()));
    return value;
  }

  /// Within (?i:, allows only what folds in the same way to both: ASCII that is no folded pair.
  /// nullopt stands for a class.
  void note_folded(std::optional<char32_t> character) {
    if (!folds_) return;
    bool differs = character && *character >= 0x80;
    if (before_) {
      differs = differs || !character || !*before_;
      if (!differs) {
        std::string pair;
        append_lower_case(**before_, pair);
        append_lower_case(*character, pair);
        differs = std::find(kFoldedPairs.begin(), kFoldedPairs.end(), pair) != kFoldedPairs.end();
      }
    }
    if (differs) refuse_syntax("such characters within (?i:");
    before_ = character;
  }

  /// Behind a backslash. Returns a character that is meant literally; writes anything else.
  std::optional<char32_t> escape(bool in_class) {
    const auto character = take_character();
    constexpr std::u32string_view kNames = U"nrtfv", kControls = U"\n\r\t\f\v";
    const auto control = kNames.find(character);
    if (control != std::u32string_view::npos) return kControls[control];
    if (character == U'x' || character == U'u') return code_point(character);
    if (is_ascii_punctuation(character)) return character;
    if (folds_) refuse_syntax("such a class within (?i:");
    if (character == U's') {
      result_ += in_class ? kSpaces : std::string("[") + kSpaces + "]";
    } else if (character == U'S' && !in_class) {
      result_ += std::string("[^") + kSpaces + "]";
    } else if (character == U'd' || character == U'D') {
      result_ += character == U'd' ? "\\p{Nd}" : "\\P{Nd}";
    } else if (character == U'p' || character == U'P') {
      property(character == U'P');
    } else {
      std::string spelling = "\\";
      append_character(character, spelling);
      refuse_syntax(in_class ? spelling + " in a class" : spelling);
    }
    return std::nullopt;
  }

  /// Behind \x: {1F600}, or two digits of ASCII. Behind \u: four digits.
  char32_t code_point(char32_t introducer) {
    const bool braces = introducer == U'x' && take("{");
    const auto size = braces ? left_.find('}') : size_t{introducer == U'x' ? 2U : 4U};
    const auto digits = left_.substr(0, std::min(size, left_.size()));
    const auto* end = digits.data() + digits.size();
    uint32_t value = 0;
    bool good = !digits.empty() && digits.size() <= 6 && digits.size() == size &&
                std::from_chars(digits.data(), end, value, 16).ptr == end;
    const bool is_surrogate = value >= 0xD800 && value < 0xE000;
    // A byte of \x above 7F is a part of a character to Oniguruma.
    good = good && value <= 0x10FFFF && !is_surrogate &&
           (braces || introducer == U'u' || value < 0x80);
    if (!good) refuse_syntax("such a code");
    left_.remove_prefix(digits.size() + (braces ? 1 : 0));
    return value;
  }

  void property(bool negative) {
    const auto end = left_.find('}');
    if (!take("{") || end == std::string_view::npos) refuse_syntax("\\p without a name");
    if (take("^")) negative = !negative;
    const std::string name(left_.substr(0, left_.find('}')));
    take(name + "}");
    result_ += negative ? "\\P{" : "\\p{";
    if (std::find(kCategories.begin(), kCategories.end(), name) != kCategories.end()) {
      result_ += name + "}";
    } else if (std::find(kScripts.begin(), kScripts.end(), name) != kScripts.end()) {
      result_ += "sc:" + name + "}";
    } else {
      refuse_syntax("\\p{" + name + "}");
    }
  }

  /// Behind its bracket.
  void character_class() {
    result_ += '[';
    if (take("^")) {
      if (folds_) refuse_syntax("such a class within (?i:");
      result_ += '^';
    }
    if (next_is("]")) refuse_syntax("a class that begins with ]");
    for (bool is_first = true; !take("]"); is_first = false) {
      if (next_is("[")) refuse_syntax("a class within a class");
      if (next_is("&&")) refuse_syntax("&& in a class");
      const bool is_dash = next_is("-");
      if (is_dash && !is_first && left_.substr(1, 1) != "]") refuse_syntax("such a - in a class");
      const auto first = class_member();
      if (!first) continue;
      write_literal(*first);
      if (!next_is("-") || left_.substr(1, 1) == "]") continue;
      if (is_dash || folds_) refuse_syntax("such a - in a class");
      take("-");
      result_ += '-';
      const auto last = next_is("[") ? std::nullopt : class_member();
      if (!last || *last < *first) refuse_syntax("such a - in a class");
      write_literal(*last);
    }
    result_ += ']';
  }

  std::optional<char32_t> class_member() {
    const auto member = take("\\") ? escape(true) : take_character();
    if (folds_ && member && *member >= 0x80) refuse_syntax("such a class within (?i:");
    return member;
  }

  std::string_view left_;
  std::string result_;
  int depth_ = 0, lookaheads_ = 0;
  int64_t repetitions_ = 0;  // at least
  bool folds_ = false;       // within (?i:
  // The element before in a sequence within (?i:, if there is one: a character, or nullopt for a
  // class.
  std::optional<std::optional<char32_t>> before_;
};

}  // namespace

Regex from_oniguruma(const std::string& pattern) { return Translation(pattern).run(); }

}  // namespace heed::examples::text
