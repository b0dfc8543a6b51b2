// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

namespace heed::examples::text {

/// GPT-2's spelling of bytes: a printable character for each of the 256, so that vocabularies of
/// bytes are text.
void append_byte_characters(std::string_view bytes, std::string& characters);

/// The bytes of a token that is spelled so; the token itself if a character of it stands for no
/// byte.
void append_bytes_of_token(std::string_view token, std::string& bytes);

}  // namespace heed::examples::text
