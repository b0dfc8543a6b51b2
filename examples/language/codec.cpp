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

class ByteCodec : public Codec {
 public:
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> tokens;
    tokens.reserve(text.size());
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    return tokens;
  }
  std::unique_ptr<Speller> speller() const override { return std::make_unique<ByteSpeller>(); }
  int64_t size() const override { return 256; }
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

class NumberCodec : public Codec {
 public:
  explicit NumberCodec(int64_t size) : size_(size) {}

  std::vector<int64_t> encode(std::string_view text) const override {
    constexpr std::string_view kSpaces = " \t\r\n";
    std::vector<int64_t> tokens;
    while (true) {
      text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
      if (text.empty()) return tokens;
      const auto word = text.substr(0, text.find_first_of(kSpaces));
      tokens.push_back(number(word));
      text.remove_prefix(word.size());
    }
  }
  std::unique_ptr<Speller> speller() const override { return std::make_unique<NumberSpeller>(); }
  int64_t size() const override { return size_; }

 private:
  int64_t number(std::string_view word) const {
    int64_t value = 0;
    const auto* end = word.data() + word.size();
    const auto [last, error] = std::from_chars(word.data(), end, value);
    if (error != std::errc() || last != end || value < 0 || value >= size_) {
      throw std::runtime_error(
          fmt::format("tokens must be whole numbers from 0 to {}, not {}", size_ - 1, word));
    }
    return value;
  }

  int64_t size_;
};

class TokenizerSpeller : public Speller {
 public:
  explicit TokenizerSpeller(TextStream stream) : stream_(std::move(stream)) {}

  std::string push(int64_t token) override { return stream_.push(token); }
  std::string finish() override { return stream_.finish(); }

 private:
  TextStream stream_;
};

class TokenizerCodec : public Codec {
 public:
  explicit TokenizerCodec(const std::string& path) : tokenizer_(path) {}

  std::vector<int64_t> encode(std::string_view text) const override {
    return tokenizer_.encode(text);
  }
  std::unique_ptr<Speller> speller() const override {
    return std::make_unique<TokenizerSpeller>(tokenizer_.decode_stream());
  }
  int64_t size() const override { return tokenizer_.size(); }

 private:
  Tokenizer tokenizer_;
};

}  // namespace

std::shared_ptr<const Codec> byte_codec() { return std::make_shared<ByteCodec>(); }

std::shared_ptr<const Codec> number_codec(int64_t size) {
  return std::make_shared<NumberCodec>(size);
}

std::shared_ptr<const Codec> tokenizer_codec(const std::string& path) {
  return std::make_shared<TokenizerCodec>(path);
}

}  // namespace heed::examples
