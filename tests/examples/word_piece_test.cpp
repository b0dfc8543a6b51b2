// SPDX-License-Identifier: BSD-3-Clause
#include "sentences/word_piece.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace heed::examples {
namespace {

using Pieces = std::vector<std::string>;

const Pieces kVocabulary = {"[PAD]", "[UNK]", "[CLS]", "[SEP]",  "[MASK]", "un",  "##aff", "##able",
                            "una",   "cafe",  ",",     "\u6771", "a",      "##a", "##",    "^"};

class WordPiece : public ::testing::Test {
 protected:
  WordPiece() { write(kVocabulary); }

  void write(const Pieces& vocabulary) const {
    std::ofstream file(path_);
    for (const auto& piece : vocabulary) file << piece << '\n';
  }

  /// The pieces between [CLS] and [SEP].
  Pieces pieces(const std::string& text, size_t max_length = 1000) const {
    Pieces result;
    for (const auto id : WordPieceTokenizer(path_).encode(text, max_length)) {
      result.push_back(kVocabulary.at(id));
    }
    EXPECT_EQ(result.front(), "[CLS]");
    EXPECT_EQ(result.back(), "[SEP]");
    return {result.begin() + 1, result.end() - 1};
  }

  std::string error(const std::string& text) const {
    try {
      WordPieceTokenizer(path_).encode(text, 10);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }

  const test::TemporaryFolder folder_{"word_piece"};
  const std::filesystem::path& directory_ = folder_.path();
  std::string path_ = directory_ / "vocab.txt";
};

TEST_F(WordPiece, TakesTheLongestPieces) {
  EXPECT_EQ(pieces("unaffable"), Pieces({"[UNK]"}));  // "una" is longer than "un"
  EXPECT_EQ(pieces("unable"), Pieces({"[UNK]"}));
  EXPECT_EQ(pieces("unaa"), Pieces({"una", "##a"}));
  EXPECT_EQ(pieces("aaffable"), Pieces({"a", "##aff", "##able"}));
  EXPECT_EQ(pieces("able"), Pieces({"[UNK]"}));  // known within words only
}

TEST_F(WordPiece, CleansText) {
  EXPECT_EQ(pieces("Caf\u00e9"), Pieces({"cafe"}));
  EXPECT_EQ(pieces("cafe\u0301"), Pieces({"cafe"}));
  EXPECT_EQ(pieces(" a\t\u00a0a\r\n"), Pieces({"a", "a"}));
  EXPECT_EQ(pieces(std::string("a\0\a\u200b\ufffda", 10)), Pieces({"a", "##a"}));
  EXPECT_EQ(pieces(""), Pieces());
}

TEST_F(WordPiece, SplitsAtPunctuationAndChineseCharacters) {
  EXPECT_EQ(pieces("a,a^a"), Pieces({"a", ",", "a", "^", "a"}));
  EXPECT_EQ(pieces("a\u6771a\uff1a"), Pieces({"a", "\u6771", "a", "[UNK]"}));
  EXPECT_EQ(pieces("##a"), Pieces({"[UNK]", "[UNK]", "a"}));
}

TEST_F(WordPiece, KeepsSpecialPieces) {
  EXPECT_EQ(pieces("a[MASK]a [SEP]"), Pieces({"a", "[MASK]", "a", "[SEP]"}));
  EXPECT_EQ(pieces("[mask"), Pieces({"[UNK]", "[UNK]"}));
}

TEST_F(WordPiece, BoundsLengths) {
  EXPECT_EQ(pieces(std::string(100, 'a')).size(), 100u);
  EXPECT_EQ(pieces(std::string(101, 'a')), Pieces({"[UNK]"}));
  EXPECT_EQ(pieces("a a a a", 5), Pieces({"a", "a", "a"}));
  EXPECT_EQ(pieces("[SEP][SEP][SEP]", 4), Pieces({"[SEP]", "[SEP]"}));
  EXPECT_EQ(pieces("a", 2), Pieces());
}

TEST_F(WordPiece, SaysWhatIsWrong) {
  EXPECT_EQ(error("a\xff"), "the text is not UTF-8");
  EXPECT_EQ(error("a\xc3"), "the text is not UTF-8");
  write({"[PAD]", "[UNK]", "[CLS]", "[MASK]"});
  EXPECT_EQ(error("a"), path_ + " is no vocabulary of BERT: it holds no [SEP]");
  std::filesystem::remove(path_);
  EXPECT_EQ(error("a"), "cannot read " + path_ + ": No such file or directory");
}

}  // namespace
}  // namespace heed::examples
