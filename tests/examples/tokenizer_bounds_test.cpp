// SPDX-License-Identifier: BSD-3-Clause
// A file and a text take little time and memory, whoever wrote them: without the limits, most of
// these take minutes or gigabytes.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/json_file.h"
#include "text/tokenizer.h"
#include "tokenizer_file.h"

namespace heed::examples::of_bounds {
namespace {

using Json = nlohmann::json;
using heed::test::TokenizerFile;

constexpr const char* kTooManySteps = "the text takes too many steps of the tokenizer's rules";

std::string repeated(const std::string& part, size_t count) {
  std::string text;
  text.reserve(part.size() * count);
  for (size_t i = 0; i < count; ++i) text += part;
  return text;
}

Json sequence_of(const std::string& name, const Json& step, size_t count) {
  return {{"type", "Sequence"}, {name, Json::array_t(count, step)}};
}

Json split_with(const std::string& regex) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json replace(const std::string& literal, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", {{"String", literal}}}, {"content", content}};
}

Json added(const std::string& content, int64_t id, bool strips = false) {
  return {{"id", id},         {"content", content}, {"special", false},    {"normalized", false},
          {"lstrip", strips}, {"rstrip", strips},   {"single_word", false}};
}

template <typename Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

/// The error of encoding a text with a tokenizer in which the value that a JSON pointer names is
/// replaced by `value`.
std::string encoding_error(const std::string& pointer, const Json& value, const std::string& text) {
  TokenizerFile file;
  file.set(pointer, value);
  const auto tokenizer = file.read();
  return error_of([&] { tokenizer.encode(text); });
}

TEST(JsonFiles, HaveLimitsOfDepthAndCount) {
  const auto error = [](const std::string& text) { return error_of([&] { parse_json(text); }); };
  EXPECT_EQ(error(repeated("[", 32) + repeated("]", 32)), "");
  EXPECT_EQ(error(repeated("[", 33)), "the file is nested deeper than 32 levels");
  EXPECT_EQ(error(repeated("[", 1'000'000)), "the file is nested deeper than 32 levels");
  EXPECT_EQ(error(repeated("{\"a\":", 1'000'000)), "the file is nested deeper than 32 levels");
  EXPECT_EQ(error("[" + repeated("{},", 10'000'000) + "0]"),
            "the file has more than 4000000 values");
  EXPECT_EQ(error("[" + repeated("{},", 3'999'998) + "0]"), "");
  std::string fields = "{";
  for (int i = 0; i < 1'000'001; ++i) fields += '"' + std::to_string(i) + "\":0,";
  EXPECT_EQ(error(fields), "the file has more than 1000000 fields");
  EXPECT_EQ(error("\"" + std::string(size_t{1} << 27, 'a')),
            "the file is longer than 134217728 bytes");
}

TEST(JsonFiles, AreWhatTheySay) {
  const auto json = parse_json(R"({"b": [1, -2, 2.5, "x", null, true, {}, []], "a": {"c": {}}})");
  EXPECT_EQ(json.dump(), R"({"a":{"c":{}},"b":[1,-2,2.5,"x",null,true,{},[]]})");
  EXPECT_TRUE(json["b"][0].is_number_unsigned());
  EXPECT_EQ(parse_json("7").dump(), "7");
  EXPECT_EQ(error_of([] { parse_json("{\"a\": 1} x"); }), "the file is not JSON, at byte 10");
  EXPECT_EQ(error_of([] { parse_json("[{\"a\": 1, \"a\": 2}]"); }),
            "an object has the field \"a\" twice");
}

TEST(TokenizerBounds, OfTemplates) {
  TokenizerFile file(TokenizerFile::of_words());
  const Json token = {{"SpecialToken", {{"id", "[CLS]"}, {"type_id", 0}}}};
  auto single = Json::array_t(999, token);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  file.set("/post_processor/single", single);
  EXPECT_EQ(file.read().encode("").size(), 999U);
  file.set("/post_processor/special_tokens/[CLS]/ids", Json::array_t(2, 1));
  EXPECT_EQ(file.error(),
            "post_processor.single[500] (an object) is one too many: at most 1000 tokens are put "
            "before or behind a text here");
}

TEST(TokenizerBounds, OfNormalizers) {
  const auto doubled = sequence_of("normalizers", replace("a", "aa"), 40);
  EXPECT_EQ(encoding_error("/normalizer", doubled, "a"), kTooManySteps);
  const auto grown = sequence_of("normalizers", replace("a", "aa"), 3);
  EXPECT_EQ(encoding_error("/normalizer", grown, std::string(10'000, 'a')), "");
  const Json prepended = {{"type", "Prepend"}, {"prepend", std::string(100'000, 'a')}};
  EXPECT_EQ(encoding_error("/normalizer", prepended, "a"), kTooManySteps);
  auto decomposed = sequence_of("normalizers", replace("a", repeated("\ufdfa", 100)), 1);
  decomposed["normalizers"].push_back({{"type", "NFKD"}});
  EXPECT_EQ(encoding_error("/normalizer", decomposed, std::string(10'000, 'a')), kTooManySteps);
  // The character that grows most: to 18.
  EXPECT_EQ(encoding_error("/normalizer", {{"type", "NFKD"}}, repeated("\ufdfa", 10'000)), "");
}

TEST(TokenizerBounds, OfNormalizersOfAddedTokens) {
  TokenizerFile file;
  file.set("/normalizer", sequence_of("normalizers", replace("a", "aa"), 40));
  auto token = added("aaa", 258);
  token["normalized"] = true;
  file.set("/added_tokens", Json::array({token}));
  EXPECT_EQ(file.error(), kTooManySteps);
}

TEST(TokenizerBounds, OfCombiningMarks) {
  TokenizerFile file;
  const auto marks = "a" + repeated("\u0315\u0300", 50'000);
  for (const auto* form : {"NFC", "NFD", "NFKC", "NFKD"}) {
    file.set("/normalizer", {{"type", form}});
    const auto tokenizer = file.read();
    const auto text = tokenizer.decode(tokenizer.encode(marks));
    const bool composes = form[2] == 'C' || form[3] == 'C';
    // Marks of the combining class 230 come before those of 232; the first is composed with the a.
    const auto ordered = composes
                             ? "\u00e0" + repeated("\u0300", 49'999) + repeated("\u0315", 50'000)
                             : "a" + repeated("\u0300", 50'000) + repeated("\u0315", 50'000);
    EXPECT_TRUE(text == ordered) << form;
  }
}

TEST(TokenizerBounds, OfPatterns) {
  const auto text = std::string(10'000, 'a') + "1b!";
  std::string alternatives = "a*a*a*a*b";
  for (int i = 0; i < 76; ++i) alternatives += "|a*[a-z]*!";
  EXPECT_EQ(encoding_error("/pre_tokenizer", split_with(alternatives), text), kTooManySteps);
  EXPECT_EQ(encoding_error("/pre_tokenizer", split_with("(a|a)*b"), text), kTooManySteps);
  // The words are short, but each of them takes its time.
  const auto steps = sequence_of("pretokenizers", split_with("(a?){50}(a?){50}b|a"), 64);
  EXPECT_EQ(encoding_error("/pre_tokenizer", steps, text), kTooManySteps);
  // A pattern of published tokenizers stays within the steps, also for rows that take many.
  const auto known = split_with(
      "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
      "\\s+(?!\\S)|\\s+");
  for (const auto* part : {" ", "a", "!", "1", "\n", "a ", "\u4eca", " \n"}) {
    EXPECT_EQ(encoding_error("/pre_tokenizer", known, repeated(part, 300'000)), "") << part;
  }
  const auto rows = repeated(repeated(" ", 999) + "a", 300);
  EXPECT_EQ(encoding_error("/pre_tokenizer", known, rows), "");
}

TEST(TokenizerBounds, OfAddedTokens) {
  TokenizerFile file;
  auto tokens = Json::array();
  for (int i = 0; i < 2000; ++i) {
    tokens.push_back(added(std::string(static_cast<size_t>(i) + 2, 'a') + "?", 258 + i));
  }
  file.set("/added_tokens", tokens);
  const auto tokenizer = file.read();
  EXPECT_EQ(error_of([&] { tokenizer.encode(std::string(20'000, 'a')); }), kTooManySteps);
  EXPECT_EQ(tokenizer.encode("bbaaa?b"), std::vector<int64_t>({98, 98, 259, 98}));

  // Each takes the spaces before and behind it.
  file.set("/added_tokens", Json::array({added(" ", 258, true)}));
  EXPECT_EQ(file.read().encode(std::string(100'000, ' ')).size(), 100'000U);
}

TEST(TokenizerBounds, OfLongWords) {
  TokenizerFile file(TokenizerFile::of_words());
  file.set("/model/max_input_chars_per_word", 1'000'000);
  file.set("/model/vocab/" + std::string(10'000, 'b'), 6);
  file.set("/model/vocab/a", 7);
  file.set("/model/vocab/##a", 8);
  const auto tokenizer = file.read();
  EXPECT_EQ(error_of([&] { tokenizer.encode(std::string(20'000, 'a')); }), kTooManySteps);
}

TEST(TokenizerBounds, OfDecoders) {
  TokenizerFile file;
  file.set("/decoder", sequence_of("decoders", replace("a", "aa"), 40));
  EXPECT_EQ(file.read().decode({'b'}), "b");
  EXPECT_EQ(error_of([&] { file.read().decode({'a'}); }), kTooManySteps);
}

/// Makes parts of a description many, long, or those of another place.
class Amplification {
 public:
  explicit Amplification(unsigned seed) : random_(seed) {}

  Json of(Json description) {
    const auto changes = 1 + below(3);
    for (size_t i = 0; i < changes; ++i) change(place_in(description), description);
    return description;
  }

  size_t below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }

 private:
  /// Somewhere between a leaf and the root.
  Json::json_pointer place_in(const Json& description) {
    const auto leaves = description.flatten();
    Json::json_pointer place(
        std::next(leaves.begin(), static_cast<std::ptrdiff_t>(below(leaves.size()))).key());
    for (auto up = below(4); up > 0 && !place.parent_pointer().empty(); --up) {
      place = place.parent_pointer();
    }
    return place;
  }

  void change(const Json::json_pointer& place, Json& description) {
    auto& value = description[place];
    const size_t count = std::array<size_t, 4>{2, 30, 1000, 20'000}[below(4)];
    if (below(4) == 0) {
      value = Json(description[place_in(description)]);
    } else if (value.is_string()) {
      const auto text = value.get<std::string>();
      value = repeated(text, std::min(count, 300'000 / (text.size() + 1)));
    } else if (value.is_array() && !value.empty()) {
      const auto parts = value;
      const auto most = std::min(count, 300'000 / value.dump().size() + 1);
      for (size_t i = 0; i < most; ++i) {
        for (const auto& part : parts) value.push_back(part);
      }
    } else if (value.is_object() && !value.empty()) {
      const auto part = *value.begin();
      const auto name = value.begin().key();
      const auto most = std::min<size_t>({count, 1000, 300'000 / part.dump().size() + 1});
      for (size_t i = 0; i < most; ++i) {
        value[name + std::to_string(i)] = part.is_number() ? Json(1000 + i) : part;
      }
    } else if (value.is_number()) {
      value = std::array<int64_t, 4>{0, 1, 300, 2147483647}[below(4)];
    }
  }

  std::mt19937 random_;
};

Json with_bounded_parts() {
  auto description = TokenizerFile::of_bytes();
  description["added_tokens"].push_back(added("aa", 259, true));
  description["added_tokens"][1]["normalized"] = true;
  description["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {replace("a", "ab"),
        {{"type", "Replace"}, {"pattern", {{"Regex", "b+|(a|c)*d"}}}, {"content", "a"}},
        {{"type", "NFKD"}},
        {{"type", "Prepend"}, {"prepend", "a"}},
        {{"type", "BertNormalizer"},
         {"clean_text", true},
         {"handle_chinese_chars", true},
         {"strip_accents", true},
         {"lowercase", true}}}}};
  description["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {split_with("[^\\r\\n\\p{L}]?\\p{L}+|\\s+(?!\\S)|\\s*x++"),
        {{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}}}}};
  description["post_processor"] = TokenizerFile::of_words()["post_processor"];
  description["decoder"] = {{"type", "Sequence"},
                            {"decoders",
                             {replace("a", "ba"),
                              {{"type", "ByteFallback"}},
                              {{"type", "Fuse"}},
                              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  return description;
}

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// In MB.
int64_t most_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1000;
}

/// Returns whether it was read.
bool use(const TokenizerFile& file, const std::string& description, const std::string& text) {
  bool is_read = false;
  try {
    const auto tokenizer = file.read_text(description);
    is_read = true;
    auto ids = tokenizer.encode(text);
    ids.resize(std::min<size_t>(ids.size(), 1000));
    tokenizer.decode(ids, false);
  } catch (const std::runtime_error&) {
  }
  return is_read;
}

TEST(TokenizerBounds, OfAmplifications) {
  // Ten times and more what these files take: it tells bounded work from minutes.
  constexpr double kSeconds = 60;
  constexpr int64_t kMegabytes = 1000;
  constexpr int kFiles = 200;
  const auto memory = most_memory();
  const std::vector<std::string> texts = {std::string(10'000, 'a'), std::string(10'000, ' '),
                                          repeated("\u0315\u0300", 2'500),
                                          repeated("ab d<|end|>", 900), repeated("\ufdfa", 3'000)};
  const TokenizerFile file;
  const auto words = TokenizerFile::of_words(), bytes = with_bounded_parts();
  Amplification amplification(11);
  int read = 0;
  for (int i = 0; i < kFiles; ++i) {
    const auto description = amplification.of(i % 3 == 0 ? words : bytes).dump();
    const auto& text = texts[amplification.below(texts.size())];
    const auto begin = processor_seconds();
    read += use(file, description, text) ? 1 : 0;
    EXPECT_LT(processor_seconds() - begin, kSeconds) << "file " << i;
  }
  EXPECT_LT(most_memory() - memory, kMegabytes);
  // Both happen, or the files test nothing.
  EXPECT_GT(read, kFiles / 20);
  EXPECT_LT(read, kFiles);
}

}  // namespace
}  // namespace heed::examples::of_bounds
