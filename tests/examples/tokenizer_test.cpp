// SPDX-License-Identifier: BSD-3-Clause
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "python_cases.h"
#include "text/pattern.h"
#include "tokenizer_file.h"

namespace heed::examples {
namespace {

using Ids = std::vector<int64_t>;
using test::TokenizerFile;

const std::filesystem::path kFixtures = HEED_TOKENIZERS;

class TokenizerBesidePython : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto reason = test::why_no_cases(kFixtures);
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (!std::filesystem::exists(path() + ".json"))
      GTEST_SKIP() << "this Python has no " << GetParam();
  }

  std::string path() const { return kFixtures / GetParam(); }
};

TEST_P(TokenizerBesidePython, EncodesAndDecodesAsPythonDoes) {
  test::expect_cases(Tokenizer(path() + ".json"), path());
}

TEST_P(TokenizerBesidePython, EncodesPairsAsPythonDoes) {
  test::expect_pairs(Tokenizer(path() + ".json"), path());
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, TokenizerBesidePython,
                         ::testing::Values("gpt2", "roberta", "llama3", "qwen2", "deepseek",
                                           "gpt4o", "llama2", "bert_uncased", "bert_cased",
                                           "compatible_forms", "merged_splits", "spaces", "minilm"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TokenizerPatterns, MatchAsPythonsDo) {
  const auto reason = test::why_no_cases(kFixtures);
  if (!reason.empty()) GTEST_SKIP() << reason;
  for (const auto& each : test::read_cases(kFixtures / "patterns")) {
    const auto text = each[1].get<std::string>();
    std::vector<std::string> matches;
    text::read_pattern({{"Regex", each[0]}}, "pattern")(text, [&](size_t begin, size_t end) {
      matches.push_back(text.substr(begin, end - begin));
    });
    ASSERT_EQ(matches, each[2].get<std::vector<std::string>>()) << each[0] << " in " << each[1];
  }
}

TEST(Tokenizer, FindsTokensByName) {
  const TokenizerFile file;
  const auto tokenizer = file.read();
  EXPECT_EQ(tokenizer.size(), 259);
  EXPECT_EQ(tokenizer.id_of("ab"), 256);
  EXPECT_EQ(tokenizer.id_of("<|end|>"), 258);
  EXPECT_EQ(tokenizer.id_of("<|"), std::nullopt);
}

TEST(Tokenizer, SurroundsTextIfAsked) {
  TokenizerFile file;
  file.set("/post_processor",
           {{"type", "BertProcessing"}, {"cls", {"<|end|>", 258}}, {"sep", {"ab", 256}}});
  const auto tokenizer = file.read();
  EXPECT_EQ(tokenizer.encode("ab"), Ids({258, 256, 256}));
  EXPECT_EQ(tokenizer.encode("ab", false), Ids({256}));
  EXPECT_EQ(tokenizer.encode(""), Ids({258, 256}));
  EXPECT_EQ(tokenizer.encode("", false), Ids());
}

TEST(Tokenizer, JoinsPairsByTheTemplate) {
  TokenizerFile file(TokenizerFile::of_words());
  EXPECT_EQ(file.read().encode("unable"), Ids({1, 3, 4, 2}));
  try {
    file.read().encode_pair("un", ".");
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the tokenizer's post_processor does not say how pairs are joined");
  }
  const auto special = [](const char* token, int type) -> nlohmann::json {
    return {{"SpecialToken", {{"id", token}, {"type_id", type}}}};
  };
  const auto text = [](const char* name, int type) -> nlohmann::json {
    return {{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  file.set("/post_processor/pair",
           {special("[CLS]", 0), text("B", 2), special("[SEP]", 1), text("A", 0)});
  const auto pair = file.read().encode_pair("unable", ".");
  EXPECT_EQ(pair.ids, Ids({1, 5, 2, 3, 4}));
  EXPECT_EQ(pair.types, Ids({0, 2, 1, 0, 0}));
  const auto plain = file.read().encode_pair("unable", "", false);
  EXPECT_EQ(plain.ids, Ids({3, 4}));
  EXPECT_EQ(plain.types, Ids({0, 0}));
  file.set("/post_processor/pair", {text("A", 0), text("A", 0)});
  EXPECT_EQ(file.error(),
            "post_processor.pair[1].Sequence.id (\"A\") must be A or B, and each once");
  file.set("/post_processor/pair", {text("A", 0), special("[SEP]", 0)});
  EXPECT_EQ(file.error(), "post_processor.pair (an array of 2) must have two of Sequence");
}

TEST(Tokenizer, LeavesOutWhatIsNoToken) {
  const auto tokenizer = TokenizerFile().read();
  EXPECT_EQ(tokenizer.decode({256, 259, -1, 1'000'000'000'000, 256}), "abab");
  EXPECT_EQ(tokenizer.decode({256, 258, 256}), "abab");
  EXPECT_EQ(tokenizer.decode({256, 258, 256}, false), "ab<|end|>ab");
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST(Tokenizer, MergesLongWordsQuickly) {
  const auto tokenizer = TokenizerFile().read();
  constexpr size_t kPairs = 500'000;  // with a quadratic algorithm, this takes minutes
  std::string text;
  for (size_t i = 0; i < kPairs; ++i) text += "ab";
  EXPECT_EQ(tokenizer.encode(text), Ids(kPairs, 256));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const auto tokenizer = TokenizerFile().read();
  // An incomplete character, a lone surrogate, one too long, one beyond Unicode, a lone byte.
  for (const auto* text : {"a\xc3", "\xed\xa0\x80", "\xe0\x80\x80", "\xf4\x90\x80\x80", "\x80"}) {
    try {
      tokenizer.encode(text);
      ADD_FAILURE() << text;
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "the text is not UTF-8");
    }
  }
}

TEST(TextStream, HoldsBackPartsOfCharacters) {
  const auto tokenizer = TokenizerFile().read();
  for (const std::string character : {"a", "\u00e9", "\u4eca", "\U0001f355"}) {
    auto stream = tokenizer.decode_stream();
    // The byte of each token is its id.
    for (size_t i = 0; i + 1 < character.size(); ++i) {
      EXPECT_EQ(stream.push(static_cast<unsigned char>(character[i])), "");
    }
    EXPECT_EQ(stream.push(static_cast<unsigned char>(character.back())), character);
    EXPECT_EQ(stream.finish(), "");
  }
}

TEST(TextStream, ReplacesWhatCannotBecomeACharacter) {
  const auto tokenizer = TokenizerFile().read();
  auto stream = tokenizer.decode_stream();
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push(0xBB), "");
  EXPECT_EQ(stream.push('a'), "\ufffda");
  EXPECT_EQ(stream.push(0x80), "\ufffd");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(258), "");  // special tokens are left out
  EXPECT_EQ(stream.finish(), "\ufffd");
  EXPECT_EQ(stream.push('b'), "b");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, OutlivesItsTokenizer) {
  auto stream = TokenizerFile().read().decode_stream(false);
  EXPECT_EQ(stream.push(258), "<|end|>");
}

}  // namespace
}  // namespace heed::examples
