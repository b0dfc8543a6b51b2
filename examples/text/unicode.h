// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace heed::examples::text {

/// Throws std::runtime_error when the text is not UTF-8.
void check_utf8(std::string_view text);

/// Appends the characters of bytes that are, or should be, UTF-8, with U+FFFD for each part that is
/// not. Returns how many bytes they are: a character that is not complete yet is left, unless this
/// `is_end`.
size_t append_whole_characters(std::string_view bytes, bool is_end, std::string& text);

/// The functions below take UTF-8.

/// The character that begins at `place`, and the place behind it.
char32_t next_character(std::string_view text, size_t& place);
/// The place of the character that ends before `place`, which is above 0.
size_t character_before(std::string_view text, size_t place);
/// The place before the spaces that end at `end`, but not before `least`.
size_t before_spaces(std::string_view text, size_t least, size_t end);
/// The place behind the spaces that begin at `begin`.
size_t behind_spaces(std::string_view text, size_t begin);
size_t count_characters(std::string_view text);
void append_character(char32_t character, std::string& text);

/// The text that `map` makes: it appends to its second argument what stands for a character.
std::string map_characters(std::string_view text,
                           const std::function<void(char32_t, std::string&)>& map);

/// Calls `use` with each grapheme cluster, what a reader takes for one character (Unicode, annex
/// 29).
void for_each_grapheme(std::string_view text, const std::function<void(std::string_view)>& use);

enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string normalize(std::string_view text, NormalForm form);
/// Each character by itself, whatever stands around it.
void append_lower_case(char32_t character, std::string& text);

bool is_white_space(char32_t character);
bool is_number(char32_t character);
bool is_mark(char32_t character);
bool is_nonspacing_mark(char32_t character);
bool is_punctuation(char32_t character);
/// Control and format characters, surrogates and private use.
bool is_other(char32_t character);

}  // namespace heed::examples::text
