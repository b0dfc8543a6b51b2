// SPDX-License-Identifier: BSD-3-Clause
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parts.h"
#include "unicode.h"
#include "work_limit.h"

namespace heed::examples::text {

namespace {

constexpr const char* kPlace = "precompiled_charsmap";

std::string bytes_of_base64(const std::string& text, const std::string& place) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t held = 0;
  int bits = 0;
  for (const auto digit : std::string_view(text).substr(0, text.find_last_not_of('=') + 1)) {
    const auto value = kDigits.find(digit);
    if (value == std::string_view::npos) refuse(place, Json(), "must be base64");
    held = (held << 6U) | static_cast<uint32_t>(value);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(held >> static_cast<uint32_t>(bits));
  }
  return bytes;
}

uint32_t number_at(const std::string& bytes, size_t place) {
  uint32_t number = 0;
  for (size_t i = 4; i-- > 0;)
    number = (number << 8U) | static_cast<unsigned char>(bytes[place + i]);
  return number;
}

/// Texts and their replacements, found in a double array (Aoe 1989), as SentencePiece writes them.
class ReplacementTable {
 public:
  ReplacementTable(const std::string& bytes, const std::string& place) {
    const auto size = bytes.size() < 4 ? 0 : number_at(bytes, 0);
    if (size == 0 || size % 4 != 0 || size > bytes.size() - 4) {
      refuse(place, Json(), "must hold a table of replacements");
    }
    for (size_t i = 4; i < size + 4; i += 4) units_.push_back(number_at(bytes, i));
    replacements_ = bytes.substr(size + 4);
    check_utf8(replacements_);
  }

  /// The replacement of the shortest beginning of the text that has one, as tokenizers does it.
  std::optional<std::string_view> find(std::string_view text) const {
    size_t node = offset_of(unit(0));
    for (const auto byte : text) {
      const auto label = static_cast<unsigned char>(byte);
      if (label == 0) break;
      node ^= label;
      const auto found = unit(node);
      if ((found & 0x800000FFU) != label) break;
      node ^= offset_of(found);
      if ((found & 0x100U) != 0) return replacement_at(unit(node) & 0x7FFFFFFFU);
    }
    return std::nullopt;
  }

 private:
  static size_t offset_of(uint32_t unit) { return (unit >> 10U) << ((unit & 0x200U) >> 6U); }

  /// 0, which has no label, beyond the array.
  uint32_t unit(size_t node) const { return node < units_.size() ? units_[node] : 0; }

  std::optional<std::string_view> replacement_at(size_t begin) const {
    if (begin >= replacements_.size()) return "";
    const auto text = std::string_view(replacements_).substr(begin);
    return text.substr(0, text.find('\0'));
  }

  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a zero
};

}  // namespace

Normalizer read_precompiled(JsonFields& fields) {
  constexpr size_t kLongestWhole = 5;  // bytes of what is looked for as a whole
  const auto place = fields.place_of(kPlace);
  const auto& given = fields.at(kPlace);
  // A description that is not of a file has the bytes themselves.
  const auto bytes = given.is_binary()
                         ? std::string(given.get_binary().begin(), given.get_binary().end())
                         : bytes_of_base64(text_of(given, place), place);
  const auto table = std::make_shared<const ReplacementTable>(bytes, place);
  return [table](std::string_view text) {
    std::string normalized;
    const auto append = [&normalized](std::string_view part) {
      normalized += part;
      WorkLimit::spend_bytes(part.size());
    };
    for_each_grapheme(text, [&](std::string_view grapheme) {
      if (grapheme.size() <= kLongestWhole) {
        if (const auto whole = table->find(grapheme)) return append(*whole);
      }
      for (size_t begin = 0, end = 0; begin < grapheme.size(); begin = end) {
        next_character(grapheme, end);
        const auto character = grapheme.substr(begin, end - begin);
        append(table->find(character).value_or(character));
      }
    });
    check_utf8(normalized);  // a table may point into a character
    return normalized;
  };
}

}  // namespace heed::examples::text
