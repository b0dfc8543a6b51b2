// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "tokenizer_file.h"

namespace heed::examples {
namespace {

using Json = nlohmann::json;
using test::TokenizerFile;

/// The error when the value that a JSON pointer names is another.
std::string error_with(const std::string& pointer, const Json& value,
                       const Json& description = TokenizerFile::of_bytes()) {
  TokenizerFile file(description);
  file.set(pointer, value);
  return file.error();
}

std::string error_of_words(const std::string& pointer, const Json& value) {
  return error_with(pointer, value, TokenizerFile::of_words());
}

std::string error_without(const std::string& pointer,
                          const Json& description = TokenizerFile::of_bytes()) {
  TokenizerFile file(description);
  file.erase(pointer);
  return file.error();
}

std::string error_of_text(const std::string& text) { return TokenizerFile().error_of_text(text); }

Json added(const std::string& content, const Json& id) {
  return {{"id", id},        {"content", content}, {"special", false},    {"normalized", false},
          {"lstrip", false}, {"rstrip", false},    {"single_word", false}};
}

Json split_with(const std::string& regex) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

TEST(TokenizerErrors, OfTheDescriptionsThemselves) {
  EXPECT_EQ(TokenizerFile().error(), "");
  EXPECT_EQ(TokenizerFile(TokenizerFile::of_words()).error(), "");
}

TEST(TokenizerErrors, OfFiles) {
  try {
    const Tokenizer tokenizer("missing.json");
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "cannot read missing.json: No such file or directory");
  }
  EXPECT_EQ(error_of_text(""), "the file is not JSON, at byte 1");
  EXPECT_EQ(error_of_text("{\"a\": 1,}"), "the file is not JSON, at byte 9");
  EXPECT_EQ(error_of_text("{\"\xff\": 1}"), "the file is not JSON, at byte 3");
  EXPECT_EQ(error_of_text("1e999"), "the file is not JSON, at byte 5");
  EXPECT_EQ(error_of_text("[1, 2]"), "the file (an array of 2) must be an object");
  EXPECT_EQ(error_of_text(R"({"version": "1.0", "version": "1.0"})"),
            "an object has the field \"version\" twice");
  EXPECT_EQ(error_of_text(R"({"model": {"vocab": {"a": 0, "a": 1}}})"),
            "an object has the field \"a\" twice");
  EXPECT_EQ(error_of_text(std::string(1'000'000, '[')), "the file is nested deeper than 32 levels");
}

TEST(TokenizerErrors, OfFields) {
  EXPECT_EQ(error_of_text("{}"), "model is missing");
  EXPECT_EQ(error_with("/version", "2.0"), "version (\"2.0\") must be 1.0");
  EXPECT_EQ(error_with("/truncation", {{"max_length", 5}}), "");
  EXPECT_EQ(error_with("/padding", {{"pad_id", 5}}), "");
  EXPECT_EQ(error_with("/extra", 7), "extra (7) is not known here");
  EXPECT_EQ(error_with("/model/extra", std::string(100, 'x')),
            "model.extra (\"" + std::string(60, 'x') + "\"...) is not known here");
  EXPECT_EQ(error_with("/model", "BPE"), "model (\"BPE\") must be an object");
  EXPECT_EQ(error_with("/model/type", "WordLevel"),
            "model.type (\"WordLevel\") must be BPE, Unigram or WordPiece");
  EXPECT_EQ(error_with("/model/type", nullptr), "");  // as in old files
  EXPECT_EQ(error_with("/model", Json::object()), "model.type is missing");
}

TEST(TokenizerErrors, OfVocabularies) {
  EXPECT_EQ(error_with("/model/vocab", Json::array()),
            "model.vocab (an array of 0) must be an object");
  for (const Json& id : {Json(-1), Json(1.5), Json("1"), Json(2147483648), Json(1e300)}) {
    EXPECT_EQ(error_with("/model/vocab/x", id),
              "model.vocab[\"x\"] (" + id.dump() + ") must be a whole number from 0 to 2147483647");
  }
  EXPECT_EQ(error_with("/model/vocab/new", 256),
            "model.vocab[\"new\"] (256) must not be the id of \"ab\" too");
}

TEST(TokenizerErrors, OfBytePairEncoding) {
  EXPECT_EQ(error_without("/model/vocab"), "model.vocab is missing");
  EXPECT_EQ(error_without("/model/merges"), "model.merges is missing");
  EXPECT_EQ(error_with("/model/merges", "a b"), "model.merges (\"a b\") must be an array");
  const std::string two = " must be two tokens, written like the others";
  EXPECT_EQ(error_with("/model/merges/1", "a b"), "model.merges[1] (\"a b\")" + two);
  EXPECT_EQ(error_with("/model/merges/0", "a b c"), "model.merges[0] (\"a b c\")" + two);
  EXPECT_EQ(error_with("/model/merges/0", "ab"), "model.merges[0] (\"ab\")" + two);
  EXPECT_EQ(error_with("/model/merges/0", {"a", "b", "c"}),
            "model.merges[0] (an array of 3)" + two);
  EXPECT_EQ(error_with("/model/merges/0", {"a", 1}), "model.merges[0] (an array of 2)" + two);
  const std::string third = " must be two tokens of model.vocab that make a third";
  EXPECT_EQ(error_with("/model/merges/0", {"xyz", "b"}), "model.merges[0] (\"xyz b\")" + third);
  EXPECT_EQ(error_with("/model/merges/0", {"a", "xyz"}), "model.merges[0] (\"a xyz\")" + third);
  EXPECT_EQ(error_with("/model/merges/0", "b a"), "model.merges[0] (\"b a\")" + third);
  EXPECT_EQ(error_with("/model/dropout", 0.0), "");
  EXPECT_EQ(error_with("/model/dropout", 0.1), "model.dropout (0.1) must be null or 0");
  EXPECT_EQ(error_with("/model/continuing_subword_prefix", "##"),
            "model.continuing_subword_prefix (\"##\") must be null or empty");
  EXPECT_EQ(error_with("/model/end_of_word_suffix", "</w>"),
            "model.end_of_word_suffix (\"</w>\") must be null or empty");
  EXPECT_EQ(error_with("/model/unk_token", "<unk>"),
            "model.unk_token (\"<unk>\") must be in model.vocab");
  EXPECT_EQ(error_with("/model/unk_token", 0), "model.unk_token (0) must be a string");
  EXPECT_EQ(error_with("/model/fuse_unk", 1), "model.fuse_unk (1) must be true or false");
  EXPECT_EQ(error_with("/model/ignore_merges", "no"),
            "model.ignore_merges (\"no\") must be true or false");
  EXPECT_EQ(error_with("/model/byte_fallback", true),
            "model.byte_fallback (true) needs a token <0x00> in model.vocab");
}

TEST(TokenizerErrors, OfWordPiece) {
  for (const auto* name :
       {"vocab", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word"}) {
    EXPECT_EQ(error_without(std::string("/model/") + name, TokenizerFile::of_words()),
              std::string("model.") + name + " is missing");
  }
  EXPECT_EQ(error_of_words("/model/unk_token", "<unk>"),
            "model.unk_token (\"<unk>\") must be in model.vocab");
  EXPECT_EQ(error_of_words("/model/max_input_chars_per_word", -1),
            "model.max_input_chars_per_word (-1) must be a whole number from 0 to 2147483647");
  EXPECT_EQ(error_of_words("/model/merges", Json::array()),
            "model.merges (an array of 0) is not known here");
}

TEST(TokenizerErrors, OfAddedTokens) {
  EXPECT_EQ(error_with("/added_tokens", Json::object()),
            "added_tokens (an object) must be an array");
  EXPECT_EQ(error_with("/added_tokens/0/id", -1),
            "added_tokens[0].id (-1) must be a whole number from 0 to 2147483647");
  EXPECT_EQ(error_with("/added_tokens/0/id", 300),
            "added_tokens[0].id (300) must be 258, the id of \"<|end|>\" behind those of "
            "model.vocab");
  EXPECT_EQ(error_with("/added_tokens/1", added("ab", 257)),
            "added_tokens[1].id (257) must be 256, the id of \"ab\" in model.vocab");
  EXPECT_EQ(error_with("/added_tokens/1", added("<|end|>", 259)),
            "added_tokens[1].content (\"<|end|>\") must not be added twice");
  EXPECT_EQ(error_with("/added_tokens/1", added("", 259)),
            "added_tokens[1].content (\"\") must not be empty");
  EXPECT_EQ(error_with("/added_tokens/0/lstrip", nullptr), "added_tokens[0].lstrip is missing");
  EXPECT_EQ(error_with("/added_tokens/0/extra", 1), "added_tokens[0].extra (1) is not known here");

  auto with_hole = TokenizerFile::of_bytes();
  with_hole["model"]["vocab"]["xyz"] = 259;  // the count of the others, and one
  EXPECT_EQ(error_with("/added_tokens/0/id", 259, with_hole),
            "added_tokens[0].id (259) must not be the id of \"xyz\" too");
  auto lower = TokenizerFile::of_bytes();
  lower["normalizer"] = {{"type", "Lowercase"}};
  lower["added_tokens"] = {added("AB", 258), added("Ab", 259)};
  EXPECT_EQ(TokenizerFile(lower).error(), "");
  for (auto& token : lower["added_tokens"]) token["normalized"] = true;
  EXPECT_EQ(TokenizerFile(lower).error(),
            "added_tokens[1].content (\"Ab\") is another added token when it is normalized");
  lower["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  EXPECT_EQ(error_with("/added_tokens/0/content", " ", lower),
            "added_tokens[0].content (\" \") is empty when it is normalized");
}

TEST(TokenizerErrors, OfNormalizers) {
  EXPECT_EQ(error_with("/normalizer", {{"type", "Nmt"}}),
            "normalizer.type (\"Nmt\") must be BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, "
            "Precompiled, Prepend, Replace, Sequence, Strip or StripAccents");
  EXPECT_EQ(error_with("/normalizer", {{"type", "NFC"}, {"form", 1}}),
            "normalizer.form (1) is not known here");
  EXPECT_EQ(error_with("/normalizer", {{"type", "Sequence"}, {"normalizers", {1}}}),
            "normalizer.normalizers[0] (1) must be an object");
  EXPECT_EQ(error_with("/normalizer",
                       {{"type", "Sequence"}, {"normalizers", Json(65, {{"type", "NFC"}})}}),
            "normalizer.normalizers[64] (an object) is one too many: at most 64 are known here");
  EXPECT_EQ(error_of_words("/normalizer/lowercase", nullptr), "normalizer.lowercase is missing");
  EXPECT_EQ(error_of_words("/normalizer/strip_accents", 1),
            "normalizer.strip_accents (1) must be true or false");
  EXPECT_EQ(error_with("/normalizer",
                       {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}}),
            "normalizer.pattern.String (\"\") must have 1 to 4096 bytes");
  EXPECT_EQ(error_with("/normalizer",
                       {{"type", "Replace"}, {"pattern", {{"Glob", "*"}}}, {"content", ""}}),
            "normalizer.pattern.String is missing");
}

TEST(TokenizerErrors, OfPreTokenizers) {
  EXPECT_EQ(error_with("/pre_tokenizer/type", "CharDelimiterSplit"),
            "pre_tokenizer.type (\"CharDelimiterSplit\") must be BertPreTokenizer, ByteLevel, "
            "Digits, Metaspace, Punctuation, Sequence, Split, Whitespace or WhitespaceSplit");
  EXPECT_EQ(error_with("/pre_tokenizer/add_prefix_space", "yes"),
            "pre_tokenizer.add_prefix_space (\"yes\") must be true or false");
  auto split = split_with("a");
  split["behavior"] = "Merged";
  EXPECT_EQ(error_with("/pre_tokenizer", split),
            "pre_tokenizer.behavior (\"Merged\") must be Removed, Isolated, MergedWithPrevious, "
            "MergedWithNext or Contiguous");
  EXPECT_EQ(
      error_with("/pre_tokenizer",
                 {{"type", "Sequence"}, {"pretokenizers", Json(65, split_with("a"))}}),
      "pre_tokenizer.pretokenizers[64] (an object) is one too many: at most 64 are known here");
}

TEST(TokenizerErrors, OfExpressions) {
  const auto error_of = [](const std::string& regex) {
    const auto message = error_with("/pre_tokenizer", split_with(regex));
    const auto beginning = "pre_tokenizer.pattern.Regex (" + Json(regex).dump() + ") ";
    EXPECT_EQ(message.substr(0, beginning.size()), beginning);
    return message.substr(std::min(beginning.size(), message.size()));
  };
  EXPECT_EQ(error_of("a*"), "must not match the empty text");
  // These mean something else to PCRE2, or nothing.
  EXPECT_EQ(error_of("\\w"), "has \\w, which is not known here");
  EXPECT_EQ(error_of("\\h"), "has \\h, which is not known here");
  EXPECT_EQ(error_of("[\\S]"), "has \\S in a class, which is not known here");
  EXPECT_EQ(error_of("^a"), "has ^ here, which is not known here");
  EXPECT_EQ(error_of("(?i)a"), "has a group here, which is not known here");
  EXPECT_EQ(error_of("(?<=a)b"), "has a group here, which is not known here");
  EXPECT_EQ(error_of("(?i:a(b))"), "has a group here, which is not known here");
  EXPECT_EQ(error_of("a{2}+"), "has a repeated repetition, which is not known here");
  EXPECT_EQ(error_of("a{2,1}"), "has a { that begins no repetition, which is not known here");
  EXPECT_EQ(error_of("a{1001}"), "has more than 1000 repetitions, which is not known here");
  EXPECT_EQ(error_of("(?=a)*b"), "has a repeated lookahead, which is not known here");
  for (const auto* regex : {"b(?=a*)", "b(?!(?:c|a+))", "b(?=(?:a){2})"}) {
    EXPECT_EQ(error_of(regex), "has a repetition within a lookahead, which is not known here");
  }
  EXPECT_EQ(error_with("/pre_tokenizer", split_with("b(?=a?)")), "");
  EXPECT_EQ(error_of("(?:ab)++"), "has a group repeated with a + behind, which is not known here");
  EXPECT_EQ(error_of("(?i:ss)"), "has such characters within (?i:, which is not known here");
  EXPECT_EQ(error_of("(?i:\u00e9)"), "has such characters within (?i:, which is not known here");
  EXPECT_EQ(error_of("(?i:a+)"), "has a repetition within (?i:, which is not known here");
  EXPECT_EQ(error_of("[a[b]]"), "has a class within a class, which is not known here");
  EXPECT_EQ(error_of("[a&&b]"), "has && in a class, which is not known here");
  EXPECT_EQ(error_of("[]a]"), "has a class that begins with ], which is not known here");
  EXPECT_EQ(error_of("[b-a]"), "has such a - in a class, which is not known here");
  EXPECT_EQ(error_of("[\\s-a]"), "has such a - in a class, which is not known here");
  EXPECT_EQ(error_of("[a"), "has an end that comes too early, which is not known here");
  EXPECT_EQ(error_of("(a"), "has a ( without its ), which is not known here");
  EXPECT_EQ(error_of("a)"), "has a ) without its (, which is not known here");
  EXPECT_EQ(error_of("\\p{Emoji}"), "has \\p{Emoji}, which is not known here");
  EXPECT_EQ(error_of("\\x{110000}"), "has such a code, which is not known here");
  EXPECT_EQ(error_of("\\x{41"), "has such a code, which is not known here");
  EXPECT_EQ(error_of("\\xe9"), "has such a code, which is not known here");
  EXPECT_EQ(error_of(std::string(51, '(')), "has a group here, which is not known here");
}

TEST(TokenizerErrors, OfExpressionsThatTakeTooLong) {
  TokenizerFile file;
  file.set("/pre_tokenizer", split_with("(a+)+b"));
  try {
    file.read().encode(std::string(100, 'a') + "cb");
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the text takes too many steps of the tokenizer's rules");
  }
}

TEST(TokenizerErrors, OfPostProcessors) {
  EXPECT_EQ(error_with("/post_processor", {{"type", "Other"}}),
            "post_processor.type (\"Other\") must be BertProcessing, ByteLevel, "
            "RobertaProcessing, Sequence or TemplateProcessing");
  const Json bert = {{"type", "BertProcessing"}, {"cls", {"ab", 256}}, {"sep", {"ab", 256}}};
  EXPECT_EQ(error_with("/post_processor", bert), "");
  EXPECT_EQ(error_with("/post_processor", {{"type", "Sequence"}, {"processors", {bert, bert}}}),
            "post_processor.processors[1].type (\"BertProcessing\") is the second that adds "
            "tokens");
  auto other = bert;
  other["cls"] = {"ab", 999};
  EXPECT_EQ(error_with("/post_processor", other),
            "post_processor.cls[1] (999) must be the id of a token");
  other["cls"] = 256;
  EXPECT_EQ(error_with("/post_processor", other),
            "post_processor.cls (256) must be an array of a token and its id");
  EXPECT_EQ(error_of_words("/post_processor/single", Json::array()),
            "post_processor.single (an array of 0) must have a Sequence");
  EXPECT_EQ(error_of_words("/post_processor/single/1/Sequence/id", "B"),
            "post_processor.single[1].Sequence.id (\"B\") must be A, and once");
  EXPECT_EQ(error_of_words("/post_processor/single/0/SpecialToken/id", "[X]"),
            "post_processor.special_tokens.[X] is missing");
  EXPECT_EQ(error_of_words("/post_processor/special_tokens/[CLS]/ids/0", 6),
            "post_processor.special_tokens.[CLS].ids[0] (6) must be the id of a token");
}

TEST(TokenizerErrors, OfDecoders) {
  EXPECT_EQ(error_with("/decoder",
                       {{"type", "Sequence"}, {"decoders", Json(65, {{"type", "ByteFallback"}})}}),
            "decoder.decoders[64] (an object) is one too many: at most 64 are known here");
  EXPECT_EQ(
      error_with("/decoder", {{"type", "BPEDecoder"}}),
      "decoder.type (\"BPEDecoder\") must be ByteFallback, ByteLevel, Fuse, Metaspace, Replace, "
      "Sequence, Strip or WordPiece");
  EXPECT_EQ(error_with("/decoder", {{"type", "Sequence"},
                                    {"decoders", {{{"type", "Fuse"}}, {{"type", "ByteLevel"}}}}}),
            "decoder.decoders[1].type (\"ByteLevel\") must stand before what joins tokens");
  Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 1}};
  EXPECT_EQ(error_with("/decoder", strip), "decoder.stop (1) must be 0");
  strip["content"] = "ab";
  EXPECT_EQ(error_with("/decoder", strip), "decoder.content (\"ab\") must be one character");
  EXPECT_EQ(error_of_words("/decoder/cleanup", nullptr), "decoder.cleanup is missing");
}

/// Changes a text, or a value of what it describes, at random.
class Mutation {
 public:
  explicit Mutation(unsigned seed) : random_(seed) {}

  std::string of_text(std::string text) {
    for (size_t count = 1 + below(4); count > 0; --count) {
      const auto place = below(text.size());
      const auto other = text.substr(below(text.size()), 1 + below(20));
      if (below(2) == 0) {
        text.replace(place, below(10), other);
      } else {
        text[place] = static_cast<char>(below(256));
      }
    }
    return text;
  }

  Json of_value(Json description) {
    const auto flat = description.flatten();
    const auto any_place = [&] {
      auto place = Json::json_pointer(std::next(flat.begin(), below(flat.size())).key());
      while (below(3) == 0 && place.parent_pointer() != place) place.pop_back();
      return place;
    };
    const Json kValues[] = {nullptr,
                            true,
                            -1,
                            0,
                            1,
                            4000000000,
                            0.5,
                            "",
                            "a",
                            "Sequence",
                            "ByteLevel",
                            "\u00e9",
                            Json::array(),
                            Json::object(),
                            Json(100, "x")};
    for (size_t count = 1 + below(2); count > 0; --count) {
      const auto place = any_place();
      if (!description.contains(place)) continue;
      const auto from = any_place();
      if (below(2) == 0 && description.contains(from)) {
        const Json copy = description[from];
        description[place] = copy;
      } else {
        description[place] = kValues[below(std::size(kValues))];
      }
    }
    return description;
  }

 private:
  size_t below(size_t bound) {
    return std::uniform_int_distribution<size_t>(0, std::max<size_t>(bound, 1) - 1)(random_);
  }

  std::mt19937 random_;
};

/// A description with every part, but few tokens, so that mutations meet the parts.
Json with_every_part() {
  auto description = TokenizerFile::of_words();
  description["model"] = {{"type", "BPE"},
                          {"unk_token", "?"},
                          {"fuse_unk", true},
                          {"vocab", {{"?", 0}, {"a", 1}, {"b", 2}, {"ab", 3}}},
                          {"merges", {"a b"}}};
  description["added_tokens"] = {added("<mask>", 4), added("?", 0)};
  description["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "NFKC"}},
        {{"type", "Replace"}, {"pattern", {{"Regex", "\\s+"}}}, {"content", " "}},
        {{"type", "Prepend"}, {"prepend", "a"}},
        description["normalizer"]}}};
  description["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {split_with("(?i:'s|'t)|[^\\r\\n\\p{L}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"),
        {{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}}}}};
  description["decoder"] = {
      {"type", "Sequence"},
      {"decoders",
       {{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", " "}},
        {{"type", "ByteFallback"}},
        {{"type", "Fuse"}},
        {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  return description;
}

/// Returns whether it was read.
bool try_text(const TokenizerFile& file, const std::string& text) {
  try {
    const auto tokenizer = file.read_text(text);
    const auto ids = tokenizer.encode("ab <mask>'s b\u00e9 12 \U0001f355ab?");
    tokenizer.decode(ids);
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

TEST(TokenizerErrors, OfMutations) {
  const TokenizerFile file(with_every_part());
  const auto text = file.description().dump();
  ASSERT_TRUE(try_text(file, text));
  Mutation mutation(7);
  int read = 0;
  constexpr int kMutations = 1500;
  for (int i = 0; i < kMutations; ++i) {
    read += try_text(file, mutation.of_text(text)) ? 1 : 0;
    read += try_text(file, mutation.of_value(file.description())
                               .dump(-1, ' ', false, Json::error_handler_t::replace))
                ? 1
                : 0;
  }
  // Both happen, or the mutations test nothing.
  EXPECT_GT(read, kMutations / 20);
  EXPECT_LT(read, kMutations);
}

}  // namespace
}  // namespace heed::examples
