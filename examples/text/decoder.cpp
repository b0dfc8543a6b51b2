// SPDX-License-Identifier: BSD-3-Clause
#include "parts.h"

#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "byte_level.h"
#include "unicode.h"

namespace heed::examples::text {

namespace {

/// The bytes of tokens. A character may come in several of them.
DecodingStep from_byte_level() {
  const auto held = std::make_shared<std::string>();
  const auto pass_on = [held](bool is_end, const OnPiece& next) {
    std::string text;
    held->erase(0, append_whole_characters(*held, is_end, text));
    next(std::move(text));
  };
  const auto push = [=](const std::string& token, const OnPiece& next) {
    append_bytes_of_token(token, *held);
    pass_on(false, next);
  };
  return {push, [=](const OnPiece& next) { pass_on(true, next); }};
}

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
  constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [what, with] : kReplacements) replace_all(text, what, with);
}

/// Joins tokens, with spaces before those that do not begin with the prefix of what continues a
/// word.
DecodingStep join_tokens(const std::optional<std::string>& prefix, bool cleans_up) {
  const auto push = [=, is_first = true](std::string token, const OnPiece& next) mutable {
    if (!is_first) {
      const bool continues = prefix && token.compare(0, prefix->size(), *prefix) == 0;
      token = continues ? token.substr(prefix->size()) : " " + token;
    }
    is_first = false;
    if (cleans_up) clean_up(token);
    next(std::move(token));
  };
  return {push};
}

std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  unsigned char byte = 0;
  const auto* end = &token[5];
  if (std::from_chars(&token[3], end, byte, 16).ptr != end) return std::nullopt;
  return static_cast<char>(byte);
}

/// Tokens like <0x61> are bytes. A row of them is text if all of it is UTF-8; otherwise U+FFFD
/// stands for each byte.
DecodingStep from_byte_fallback() {
  const auto held = std::make_shared<std::string>();
  const auto finish = [held](const OnPiece& next) {
    if (held->empty()) return;
    std::string text;
    append_whole_characters(*held, true, text);
    if (text != *held) {
      text.clear();
      for (size_t i = 0; i < held->size(); ++i) append_character(0xFFFD, text);
    }
    held->clear();
    next(std::move(text));
  };
  const auto push = [=](std::string token, const OnPiece& next) {
    if (const auto byte = byte_of(token)) {
      *held += *byte;
      return;
    }
    finish(next);
    next(std::move(token));
  };
  return {push, finish};
}

/// Removes up to `most` of one character from the beginning of each token, or of the whole text.
DecodingStep strip_beginning(const std::string& character, int64_t most, bool of_whole_text) {
  const auto push = [=, left = most](const std::string& token, const OnPiece& next) mutable {
    if (!of_whole_text) left = most;
    size_t begin = 0;
    while (left > 0 && token.compare(begin, character.size(), character) == 0) {
      begin += character.size();
      --left;
    }
    if (begin < token.size()) left = 0;
    next(token.substr(begin));
  };
  return {push};
}

/// Each `space` becomes a space; those of the first token vanish with `drops_first`.
DecodingStep from_metaspace(const std::string& space, bool drops_first) {
  const auto push = [=, is_first = true](std::string token, const OnPiece& next) mutable {
    replace_all(token, space, is_first && drops_first ? "" : " ");
    is_first = false;
    next(std::move(token));
  };
  return {push};
}

using MakeStep = std::function<DecodingStep()>;

MakeStep read_metaspace_step(JsonFields& fields) {
  const auto space = fields.text("replacement");
  if (space.empty()) refuse(fields.place_of("replacement"), space, "must not be empty");
  fields.pass_over({"str_rep", "split"});
  const auto scheme = fields.find_text("prepend_scheme");
  const bool adds_space = fields.boolean_or("add_prefix_space", true);
  const bool drops_first = scheme ? *scheme != "never" : adds_space;
  return [=] { return from_metaspace(space, drops_first); };
}

MakeStep read_strip(JsonFields& fields, bool of_whole_text) {
  const auto character = fields.text("content");
  size_t size = 0;
  if (!character.empty()) next_character(character, size);
  if (size == 0 || size != character.size()) {
    refuse(fields.place_of("content"), character, "must be one character");
  }
  if (fields.whole_number("stop", kLargestId) != 0) {
    refuse(fields.place_of("stop"), fields.at("stop"), "must be 0");
  }
  const auto most = fields.whole_number("start", kLargestId);
  return [=] { return strip_beginning(character, most, of_whole_text); };
}

MakeStep read_step(const std::string& type, JsonFields& fields) {
  if (type == "ByteFallback") return from_byte_fallback;
  if (type == "ByteLevel") {
    // These do not concern decoding.
    fields.pass_over({"add_prefix_space", "trim_offsets", "use_regex"});
    return from_byte_level;
  }
  if (type == "Metaspace") return read_metaspace_step(fields);
  if (type == "WordPiece") {
    const auto prefix = fields.text("prefix");
    const bool cleans_up = fields.boolean("cleanup");
    return [=] { return join_tokens(prefix, cleans_up); };
  }
  if (type == "Replace") {
    const auto replace = read_replacement(fields);
    const auto push = [=](const std::string& token, const OnPiece& next) { next(replace(token)); };
    return [=] { return DecodingStep{push}; };
  }
  refuse(fields.place_of("type"), type,
         "must be ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip or "
         "WordPiece");
}

}  // namespace

Decoder read_decoder(const Json* json) {
  if (json == nullptr) return {[] { return join_tokens(std::nullopt, false); }};
  Decoder decoder;
  bool is_fused = false;  // what comes next sees one text, not tokens
  const auto read = [&](const std::string& type, JsonFields& fields) {
    if (type == "Fuse") {
      is_fused = true;
    } else if (type == "Strip") {
      decoder.push_back(read_strip(fields, is_fused));
    } else {
      if (is_fused) refuse(fields.place_of("type"), type, "must stand before what joins tokens");
      decoder.push_back(read_step(type, fields));
      is_fused = type == "ByteLevel";
    }
    return decoder.size();
  };
  for_each_rule(json, "decoder", "decoders", read);
  return decoder;
}

}  // namespace heed::examples::text
