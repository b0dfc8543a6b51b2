#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "python_cases.h"
#include "text/tokenizer.h"

namespace heed::examples::of_sentence_pieces {
namespace {

const std::filesystem::path kFolders = HEED_SENTENCE_PIECES;

class SentencePiecesBesidePython : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto reason = test::why_no_cases(kFolders);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  std::string path() const { return kFolders / GetParam(); }
};

TEST_P(SentencePiecesBesidePython, ReadsTheTokenizerThatTransformersWrites) {
  const Tokenizer tokenizer(path() + ".json");
  test::expect_cases(tokenizer, path());
  test::expect_pairs(tokenizer, path());
}

TEST_P(SentencePiecesBesidePython, ReadsTheModel) {
  const auto file = Tokenizer::file_in(path());
  ASSERT_NE(file, "");
  const Tokenizer tokenizer(file);
  EXPECT_EQ(tokenizer.size(), Tokenizer(path() + ".json").size());
  test::expect_cases(tokenizer, path());
  test::expect_pairs(tokenizer, path());
}

INSTANTIATE_TEST_SUITE_P(Folders, SentencePiecesBesidePython,
                         ::testing::Values("t5", "t5_few_extra_ids", "xlm_roberta", "llama",
                                           "llama_legacy", "llama_without_space", "gemma"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace heed::examples::of_sentence_pieces
