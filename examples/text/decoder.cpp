#include "decoder.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "byte_level.h"
#include "normalizers.h"
#include "unicode.h"

namespace heed::examples::text {

namespace {

/// The bytes of tokens. A character may come in several of them.
class FromByteLevel : public DecodingStep {
 public:
  void push(std::string token, const OnPiece& next) override {
    append_bytes_of_token(token, held_);
    pass_on(false, next);
  }
  void finish(const OnPiece& next) override { pass_on(true, next); }

 private:
  void pass_on(bool is_end, const OnPiece& next) {
    std::string text;
    held_.erase(0, append_whole_characters(held_, is_end, text));
    next(std::move(text));
  }

  std::string held_;
};

/// Without a decoder, spaces stand between tokens.
class JoinBySpaces : public DecodingStep {
 public:
  void push(std::string token, const OnPiece& next) override {
    next(is_first_ ? std::move(token) : " " + token);
    is_first_ = false;
  }

 private:
  bool is_first_ = true;
};

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  auto place = text.find(what);
  if (place == std::string::npos) return;
  std::string replaced;
  for (size_t done = 0;; place = text.find(what, done)) {
    replaced.append(text, done, place - done);
    if (place == std::string::npos) break;
    replaced += with;
    done = place + what.size();
  }
  text = std::move(replaced);
}

/// Removes spaces that English does not have.
void clean_up(std::string& text) {
  using Replacement = std::pair<std::string_view, std::string_view>;
  constexpr std::array<Replacement, 11> kReplacements = {
      Replacement(" .", "."),     Replacement(" ?", "?"),           Replacement(" !", "!"),
      Replacement(" ,", ","),     Replacement(" ' ", "'"),          Replacement(" n't", "n't"),
      Replacement(" 'm", "'m"),   Replacement(" do not", " don't"), Replacement(" 's", "'s"),
      Replacement(" 've", "'ve"), Replacement(" 're", "'re"),
  };
  for (const auto& [what, with] : kReplacements) replace_all(text, what, with);
}

class FromWordPieces : public DecodingStep {
 public:
  FromWordPieces(std::string prefix, bool cleans_up)
      : prefix_(std::move(prefix)), cleans_up_(cleans_up) {}

  void push(std::string token, const OnPiece& next) override {
    if (!is_first_) {
      const bool continues = token.compare(0, prefix_.size(), prefix_) == 0;
      token = continues ? token.substr(prefix_.size()) : " " + token;
    }
    is_first_ = false;
    if (cleans_up_) clean_up(token);
    next(std::move(token));
  }

 private:
  std::string prefix_;
  bool cleans_up_;
  bool is_first_ = true;
};

class ReplaceInTokens : public DecodingStep {
 public:
  explicit ReplaceInTokens(Normalizer replace) : replace_(std::move(replace)) {}

  void push(std::string token, const OnPiece& next) override { next(replace_(token)); }

 private:
  Normalizer replace_;
};

/// Tokens like <0x61> are bytes. A row of them is text if all of it is UTF-8; otherwise U+FFFD
/// stands for each byte.
class FromByteFallback : public DecodingStep {
 public:
  void push(std::string token, const OnPiece& next) override {
    if (const auto byte = byte_of(token)) {
      held_ += *byte;
      return;
    }
    finish(next);
    next(std::move(token));
  }

  void finish(const OnPiece& next) override {
    if (held_.empty()) return;
    std::string text;
    append_whole_characters(held_, true, text);
    if (text != held_) {
      text.clear();
      for (size_t i = 0; i < held_.size(); ++i) append_character(0xFFFD, text);
    }
    held_.clear();
    next(std::move(text));
  }

 private:
  static std::optional<char> byte_of(std::string_view token) {
    if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
    unsigned char byte = 0;
    const auto* end = &token[5];
    if (std::from_chars(&token[3], end, byte, 16).ptr != end) return std::nullopt;
    return static_cast<char>(byte);
  }

  std::string held_;
};

/// Removes up to `most` of one character from the beginning of each token, or of the whole text.
class StripBeginning : public DecodingStep {
 public:
  StripBeginning(std::string character, int64_t most, bool of_whole_text)
      : character_(std::move(character)), most_(most), left_(most), of_whole_text_(of_whole_text) {}

  void push(std::string token, const OnPiece& next) override {
    if (!of_whole_text_) left_ = most_;
    size_t begin = 0;
    while (left_ > 0 && token.compare(begin, character_.size(), character_) == 0) {
      begin += character_.size();
      --left_;
    }
    if (begin < token.size()) left_ = 0;
    next(token.substr(begin));
  }

 private:
  std::string character_;
  int64_t most_;
  int64_t left_;
  bool of_whole_text_;
};

class DecoderReader {
 public:
  size_t read(const std::string& type, JsonFields& fields) {
    if (type == "Fuse") {
      is_fused_ = true;
    } else if (type == "Strip") {
      read_strip(fields);
    } else {
      if (is_fused_) refuse(fields.place_of("type"), type, "must stand before what joins tokens");
      read_for_tokens(type, fields);
    }
    return decoder_.size();
  }

  Decoder decoder() const { return decoder_; }

 private:
  template <typename Step, typename... Arguments>
  void add(Arguments... arguments) {
    decoder_.emplace_back([=] { return std::make_unique<Step>(arguments...); });
  }

  void read_strip(JsonFields& fields) {
    const auto character = fields.text("content");
    size_t size = 0;
    if (!character.empty()) next_character(character, size);
    if (size == 0 || size != character.size()) {
      refuse(fields.place_of("content"), character, "must be one character");
    }
    if (fields.whole_number("stop", kLargestId) != 0) {
      refuse(fields.place_of("stop"), fields.at("stop"), "must be 0");
    }
    add<StripBeginning>(character, fields.whole_number("start", kLargestId), is_fused_);
  }

  void read_for_tokens(const std::string& type, JsonFields& fields) {
    if (type == "ByteLevel") {
      // These do not concern decoding.
      fields.pass_over({"add_prefix_space", "trim_offsets", "use_regex"});
      add<FromByteLevel>();
      is_fused_ = true;
    } else if (type == "WordPiece") {
      const auto prefix = fields.text("prefix");
      add<FromWordPieces>(prefix, fields.boolean("cleanup"));
    } else if (type == "Replace") {
      add<ReplaceInTokens>(read_replacement(fields));
    } else if (type == "ByteFallback") {
      add<FromByteFallback>();
    } else {
      refuse(fields.place_of("type"), type,
             "must be ByteFallback, ByteLevel, Fuse, Replace, Sequence, Strip or WordPiece");
    }
  }

  Decoder decoder_;
  bool is_fused_ = false;  // what comes next sees one text, not tokens
};

}  // namespace

Decoder read_decoder(const Json* decoder) {
  if (decoder == nullptr) return {[] { return std::make_unique<JoinBySpaces>(); }};
  DecoderReader reader;
  for_each_rule(*decoder, "decoder", "decoders", [&](const std::string& type, JsonFields& fields) {
    return reader.read(type, fields);
  });
  return reader.decoder();
}

}  // namespace heed::examples::text
