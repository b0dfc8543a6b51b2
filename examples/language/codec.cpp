// SPDX-License-Identifier: BSD-3-Clause
#include "codec.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "text/tokenizer.h"

namespace heed::examples {

namespace {

/// How many bytes the character has that begins with this one; 0 if none does.
size_t character_size(char first) {
  const auto byte = static_cast<unsigned char>(first);
  if (byte < 0x80) return 1;
  if (byte < 0xC0) return 0;
  if (byte < 0xE0) return 2;
  if (byte < 0xF0) return 3;
  return byte < 0xF8 ? 4 : 0;
}

/// Passes on bytes that are not UTF-8 as they are.
Speller byte_speller() {
  const auto held = std::make_shared<std::string>();  // the beginning of a character
  const auto finish = [held] { return std::exchange(*held, ""); };
  const auto push = [held, finish](int64_t token) {
    const auto byte = static_cast<char>(token);
    const bool continues = character_size(byte) == 0;
    auto text = continues ? std::string() : finish();
    *held += byte;
    if (held->size() >= character_size(held->front())) text += finish();
    return text;
  };
  return {push, finish};
}

/// A number below `size`.
int64_t number(std::string_view word, int64_t size) {
  int64_t value = 0;
  const auto* end = word.data() + word.size();
  const auto [last, error] = std::from_chars(word.data(), end, value);
  if (error != std::errc() || last != end || value < 0 || value >= size) {
    throw std::runtime_error(
        fmt::format("tokens must be whole numbers from 0 to {}, not {}", size - 1, word));
  }
  return value;
}

/// The tokens without their first `count`, if the next ones are the same.
std::vector<int64_t> without_repeated_beginning(std::vector<int64_t> tokens, size_t count) {
  if (tokens.size() < 2 * count) return tokens;
  const auto text = tokens.begin() + static_cast<std::ptrdiff_t>(count);
  if (std::equal(tokens.begin(), text, text)) tokens.erase(tokens.begin(), text);
  return tokens;
}

}  // namespace

std::shared_ptr<const Codec> byte_codec() {
  const auto encode = [](std::string_view text) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    return std::vector<int64_t>(bytes, bytes + text.size());
  };
  return std::make_shared<Codec>(Codec{encode, encode, byte_speller, 256});
}

std::shared_ptr<const Codec> number_codec(int64_t size) {
  const auto encode = [size](std::string_view text) {
    constexpr std::string_view kSpaces = " \t\r\n";
    std::vector<int64_t> tokens;
    while (true) {
      text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
      if (text.empty()) return tokens;
      const auto word = text.substr(0, text.find_first_of(kSpaces));
      tokens.push_back(number(word, size));
      text.remove_prefix(word.size());
    }
  };
  const auto speller = [] {
    const auto push = [separator = ""](int64_t token) mutable {
      return std::exchange(separator, " ") + std::to_string(token);
    };
    return Speller{push, [] { return std::string(); }};
  };
  return std::make_shared<Codec>(Codec{encode, encode, speller, size});
}

std::shared_ptr<const Codec> tokenizer_codec(const std::string& path) {
  const Tokenizer tokenizer(path);
  const auto encode = [tokenizer](std::string_view text) {
    return without_repeated_beginning(tokenizer.encode(text), tokenizer.tokens_before().size());
  };
  const auto encode_raw = [tokenizer](std::string_view text) {
    return tokenizer.encode(text, /*add_special_tokens=*/false);
  };
  const auto speller = [tokenizer] {
    auto stream = tokenizer.decode_stream();
    return Speller{[stream](int64_t token) mutable { return stream.push(token); },
                   [stream]() mutable { return stream.finish(); }};
  };
  return std::make_shared<Codec>(Codec{encode, encode_raw, speller, tokenizer.size()});
}

}  // namespace heed::examples
