// SPDX-License-Identifier: BSD-3-Clause
#include "byte_level.h"

#include <array>
#include <cstddef>

#include "unicode.h"

namespace heed::examples::text {

namespace {

constexpr size_t kBytes = 256;

bool stands_for_itself(size_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

struct ByteSpellings {
  std::array<std::string, kBytes> of_byte;
  std::array<int, 2 * kBytes> byte_of{};  // -1: none

  ByteSpellings() {
    byte_of.fill(-1);
    char32_t next = kBytes;
    for (size_t byte = 0; byte < kBytes; ++byte) {
      const auto character = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
      append_character(character, of_byte[byte]);
      byte_of[character] = static_cast<int>(byte);
    }
  }
};

const ByteSpellings& byte_spellings() {
  static const ByteSpellings spellings;
  return spellings;
}

}  // namespace

void append_byte_characters(std::string_view bytes, std::string& characters) {
  const auto& spellings = byte_spellings().of_byte;
  for (const auto byte : bytes) characters += spellings[static_cast<unsigned char>(byte)];
}

void append_bytes_of_token(std::string_view token, std::string& bytes) {
  const auto& byte_of = byte_spellings().byte_of;
  const auto before = bytes.size();
  for (size_t place = 0; place < token.size();) {
    const auto character = next_character(token, place);
    const auto byte = character < byte_of.size() ? byte_of[character] : -1;
    if (byte < 0) {
      bytes.resize(before);
      bytes += token;
      return;
    }
    bytes += static_cast<char>(byte);
  }
}

}  // namespace heed::examples::text
