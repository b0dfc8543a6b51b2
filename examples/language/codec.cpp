#include "codec.h"

#include <fmt/core.h>

#include <charconv>
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
class ByteSpeller : public Speller {
 public:
  std::string push(int64_t token) override {
    const auto byte = static_cast<char>(token);
    const bool continues = character_size(byte) == 0;
    auto text = continues ? std::string() : finish();
    held_ += byte;
    if (held_.size() >= character_size(held_.front())) text += finish();
    return text;
  }
  std::string finish() override { return std::exchange(held_, ""); }

 private:
  std::string held_;  // the beginning of a character
};

class NumberSpeller : public Speller {
 public:
  std::string push(int64_t token) override {
    return std::exchange(separator_, " ") + std::to_string(token);
  }
  std::string finish() override { return ""; }

 private:
  std::string separator_;
};

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

class TokenizerSpeller : public Speller {
 public:
  explicit TokenizerSpeller(TextStream stream) : stream_(std::move(stream)) {}

  std::string push(int64_t token) override { return stream_.push(token); }
  std::string finish() override { return stream_.finish(); }

 private:
  TextStream stream_;
};

}  // namespace

std::shared_ptr<const Codec> byte_codec() {
  const auto encode = [](std::string_view text) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    return std::vector<int64_t>(bytes, bytes + text.size());
  };
  const auto speller = [] { return std::make_unique<ByteSpeller>(); };
  return std::make_shared<Codec>(Codec{encode, speller, 256});
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
  const auto speller = [] { return std::make_unique<NumberSpeller>(); };
  return std::make_shared<Codec>(Codec{encode, speller, size});
}

std::shared_ptr<const Codec> tokenizer_codec(const std::string& path) {
  const Tokenizer tokenizer(path);
  const auto encode = [tokenizer](std::string_view text) { return tokenizer.encode(text); };
  const auto speller = [tokenizer] {
    return std::make_unique<TokenizerSpeller>(tokenizer.decode_stream());
  };
  return std::make_shared<Codec>(Codec{encode, speller, tokenizer.size()});
}

}  // namespace heed::examples
