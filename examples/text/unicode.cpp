// SPDX-License-Identifier: BSD-3-Clause
#include "unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <stdexcept>
#include <vector>

#include "work_limit.h"

namespace heed::examples::text {

namespace {

const utf8proc_uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

/// Whether the character is of one of these categories.
bool has_category(char32_t character, std::initializer_list<utf8proc_category_t> categories) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(character));
  return std::find(categories.begin(), categories.end(), category) != categories.end();
}

/// Most text is in its normal form already, and can be recognized by its bytes.
bool is_normal(std::string_view text, NormalForm form) {
  // Below U+0300 nothing composes; below U+0080 nothing decomposes.
  const unsigned char first_that_may_change = form == NormalForm::nfc ? 0xCC : 0x80;
  return std::all_of(text.begin(), text.end(), [=](char byte) {
    return static_cast<unsigned char>(byte) < first_that_may_change;
  });
}

void append_decomposed(char32_t character, utf8proc_option_t options,
                       std::vector<utf8proc_int32_t>& characters) {
  constexpr size_t kMost = 32;  // Unicode has one of 18
  std::array<utf8proc_int32_t, kMost> parts{};
  int boundary = 0;  // of graphemes, for which nobody asks
  const auto count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character), parts.data(),
                              static_cast<utf8proc_ssize_t>(kMost), options, &boundary);
  if (count < 0 || count > static_cast<utf8proc_ssize_t>(kMost)) {
    throw std::runtime_error("the text cannot be normalized");
  }
  WorkLimit::spend_bytes(static_cast<size_t>(count));
  characters.insert(characters.end(), parts.begin(), parts.begin() + count);
}

/// Puts each row of combining marks into the order of their classes. utf8proc takes time with the
/// square of a row's length.
void order_marks(std::vector<utf8proc_int32_t>& characters) {
  const auto class_of = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  const auto is_mark = [&](utf8proc_int32_t c) { return class_of(c) > 0; };
  for (auto begin = characters.begin(); begin != characters.end();) {
    begin = std::find_if(begin, characters.end(), is_mark);
    const auto end = std::find_if_not(begin, characters.end(), is_mark);
    std::stable_sort(begin, end, [&](auto a, auto b) { return class_of(a) < class_of(b); });
    begin = end;
  }
}

struct Beginning {
  size_t size;       // of the character at the beginning, or of what is there of it
  bool is_complete;  // a whole character, rather than the beginning of one
  bool is_cut;       // the bytes end before it does
};

/// The beginning of the bytes, of which there is at least one (Unicode, table 3-7).
Beginning begin_of(std::string_view bytes) {
  const auto byte = [&bytes](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const auto first = byte(0);
  if (first < 0x80) return {1, true, false};
  if (first < 0xC2 || first > 0xF4) return {1, false, false};
  const size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  const unsigned char least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < size; ++i) {
    if (i == bytes.size()) return {i, false, true};
    const bool continues = i == 1 ? byte(i) >= least && byte(i) <= most : (byte(i) & 0xC0U) == 0x80;
    if (!continues) return {i, false, false};
  }
  return {size, true, false};
}

}  // namespace

void check_utf8(std::string_view text) {
  while (!text.empty()) {
    const auto next = begin_of(text);
    if (!next.is_complete) throw std::runtime_error("the text is not UTF-8");
    text.remove_prefix(next.size);
  }
}

size_t append_whole_characters(std::string_view bytes, bool is_end, std::string& text) {
  size_t done = 0;
  while (done < bytes.size()) {
    const auto next = begin_of(bytes.substr(done));
    if (next.is_cut && !is_end) break;
    if (next.is_complete) {
      text += bytes.substr(done, next.size);
    } else {
      text += "\xEF\xBF\xBD";
    }
    done += next.size;
  }
  return done;
}

char32_t next_character(std::string_view text, size_t& place) {
  utf8proc_int32_t character = 0;
  const auto left = static_cast<utf8proc_ssize_t>(text.size() - place);
  place += static_cast<size_t>(utf8proc_iterate(bytes_of(text) + place, left, &character));
  return static_cast<char32_t>(character);
}

size_t character_before(std::string_view text, size_t place) {
  do --place;
  while ((text[place] & 0xC0) == 0x80);
  return place;
}

size_t before_spaces(std::string_view text, size_t least, size_t end) {
  while (end > least) {
    const auto begin = character_before(text, end);
    auto next = begin;
    if (!is_white_space(next_character(text, next))) break;
    end = begin;
  }
  return end;
}

size_t behind_spaces(std::string_view text, size_t begin) {
  for (auto next = begin; begin < text.size(); begin = next) {
    if (!is_white_space(next_character(text, next))) break;
  }
  return begin;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

void append_character(char32_t character, std::string& text) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes.data());
  text.append(bytes.begin(), bytes.begin() + size);
}

std::string map_characters(std::string_view text,
                           const std::function<void(char32_t, std::string&)>& map) {
  std::string mapped;
  mapped.reserve(text.size());
  for (size_t place = 0; place < text.size();) map(next_character(text, place), mapped);
  return mapped;
}

void for_each_grapheme(std::string_view text, const std::function<void(std::string_view)>& use) {
  utf8proc_int32_t state = 0;
  size_t begin = 0, end = 0;
  for (char32_t last = 0; end < text.size();) {
    const auto place = end;
    const auto next = next_character(text, end);
    const bool breaks =
        place > 0 && utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last),
                                                      static_cast<utf8proc_int32_t>(next), &state);
    if (breaks) {
      use(text.substr(begin, place - begin));
      begin = place;
    }
    last = next;
  }
  if (begin < text.size()) use(text.substr(begin));
}

std::string normalize(std::string_view text, NormalForm form) {
  if (is_normal(text, form)) return std::string(text);
  const bool composes = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
      (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> characters;
  for (size_t place = 0; place < text.size();) {
    append_decomposed(next_character(text, place), options, characters);
  }
  order_marks(characters);
  auto size = static_cast<utf8proc_ssize_t>(characters.size());
  if (composes) size = utf8proc_normalize_utf32(characters.data(), size, options);
  if (size < 0) throw std::runtime_error("the text cannot be normalized");
  std::string normalized;
  normalized.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < size; ++i) {
    append_character(static_cast<char32_t>(characters[static_cast<size_t>(i)]), normalized);
  }
  return normalized;
}

void append_lower_case(char32_t character, std::string& text) {
  if (character == U'\u0130') {  // the only one whose lower case has two characters
    text += "i\u0307";
    return;
  }
  append_character(
      static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))), text);
}

bool is_white_space(char32_t character) {
  return (character >= U'\t' && character <= U'\r') || character == 0x85 ||
         has_category(character,
                      {UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZL, UTF8PROC_CATEGORY_ZP});
}

bool is_number(char32_t character) {
  return has_category(character,
                      {UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NL, UTF8PROC_CATEGORY_NO});
}

bool is_mark(char32_t character) {
  return has_category(character,
                      {UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MC, UTF8PROC_CATEGORY_ME});
}

bool is_nonspacing_mark(char32_t character) {
  return has_category(character, {UTF8PROC_CATEGORY_MN});
}

bool is_punctuation(char32_t character) {
  return has_category(character, {UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PD, UTF8PROC_CATEGORY_PS,
                                  UTF8PROC_CATEGORY_PE, UTF8PROC_CATEGORY_PI, UTF8PROC_CATEGORY_PF,
                                  UTF8PROC_CATEGORY_PO});
}

bool is_other(char32_t character) {
  return has_category(character, {UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CF, UTF8PROC_CATEGORY_CS,
                                  UTF8PROC_CATEGORY_CO});
}

}  // namespace heed::examples::text
