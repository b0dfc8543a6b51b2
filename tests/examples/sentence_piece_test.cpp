// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "python_cases.h"
#include "text/tokenizer.h"

namespace heed::examples::of_sentence_pieces {
namespace {

const std::filesystem::path kFolders = HEED_SENTENCE_PIECES;

/// A folder that goes with its files.
class TestFolder {
 public:
  TestFolder() {
    auto name = ::testing::TempDir() + "heed_sentence_pieces_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A model file of byte-pair encoding: <unk>, <s>, </s> and some pieces.
std::string model_file(const std::vector<std::string>& pieces, char kind = 2) {
  std::string file;
  const auto append = [&file](const std::string& piece, char type) {
    const auto size = static_cast<char>(piece.size());
    file += std::string("\n") + static_cast<char>(size + 4) + '\n' + size + piece + '\x18' + type;
  };
  append("<unk>", 2);
  append("<s>", 3);
  append("</s>", 3);
  for (const auto& piece : pieces) append(piece, 1);
  return file + "\x12\x02\x18" + kind;
}

/// The error of a folder with such a model, without the path at its beginning.
std::string error_of(const std::string& model, const std::string& config,
                     const std::string& added_tokens = "") {
  const TestFolder folder;
  const auto path = (folder.path() / "tokenizer.model").string();
  std::ofstream(path, std::ios::binary) << model;
  std::ofstream(folder.path() / "tokenizer_config.json") << config;
  if (!added_tokens.empty()) {
    std::ofstream(folder.path() / "added_tokens.json") << added_tokens;
  }
  try {
    const Tokenizer tokenizer(path);
  } catch (const std::runtime_error& error) {
    return std::string(error.what()).substr(path.size() + 2);
  }
  return "";
}

constexpr const char* kLlama = R"({"tokenizer_class": "LlamaTokenizer"})";

TEST(SentencePieces, NameWhatIsNotUnderstood) {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) {
    std::array<char, 7> piece{};
    std::snprintf(piece.data(), piece.size(), "<0x%02X>", static_cast<unsigned>(byte));
    bytes.emplace_back(piece.data());
  }
  const auto good = model_file(bytes);
  EXPECT_EQ(error_of(good, kLlama), "");
  EXPECT_EQ(error_of("{}", kLlama), "the file is not a whole model of SentencePiece");
  EXPECT_EQ(error_of(model_file({"a", "a"}), kLlama),
            "the model must not have the piece \"a\" twice");
  EXPECT_EQ(error_of(model_file({"a"}), kLlama),
            "model.byte_fallback (true) needs a token <0x00> in model.vocab");
  EXPECT_EQ(error_of(model_file({"a"}, 1), kLlama),
            "the model must be of byte-pair encoding in this family");
  EXPECT_EQ(error_of(good, "{}"), "tokenizer_config.json: tokenizer_class is missing");
  EXPECT_EQ(
      error_of(good, R"({"tokenizer_class": "XLNetTokenizer"})"),
      "tokenizer_config.json: tokenizer_class (\"XLNetTokenizer\") is of no family whose model "
      "of SentencePiece is known here (T5, XLM-RoBERTa, Llama, Gemma): write a tokenizer.json "
      "with transformers, by AutoTokenizer.from_pretrained(folder).save_pretrained(folder)");
  EXPECT_EQ(error_of(good, R"({"tokenizer_class": "T5Tokenizer"})"),
            "the model must be a unigram model in this family");
  const std::string of_llama = R"({"tokenizer_class": "LlamaTokenizer", )";
  EXPECT_EQ(error_of(good, of_llama + R"("mystery": 1})"),
            "tokenizer_config.json.mystery (1) is not known here");
  EXPECT_EQ(error_of(good, of_llama + R"("pad_token": "[PAD]"})"),
            "pad_token (\"[PAD]\") must be a piece of the model");
  EXPECT_EQ(error_of(good, of_llama + R"("sp_model_kwargs": {"nbest_size": 2}})"),
            "tokenizer_config.json.sp_model_kwargs (an object) must be empty");
  EXPECT_EQ(error_of(good, of_llama + R"("added_tokens_decoder": {"5": {"content": "<s>"}}})"),
            "tokenizer_config.json.added_tokens_decoder.5 (\"5\") must be 1");
  EXPECT_EQ(error_of(good, kLlama, R"({"<s>": 7})"), "added_tokens.json.<s> (7) must be 1");
  EXPECT_EQ(error_of(good, kLlama, R"({"[PAD]": 259})"),
            "added_tokens.json (\"[PAD]\") must be a piece of the model");
}

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

/// A file that ends between pieces would be a smaller model: it is cut within one here.
TEST_P(SentencePiecesBesidePython, RefusesAModelThatIsCut) {
  std::ifstream whole(Tokenizer::file_in(path()), std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(whole), {});
  const TestFolder folder;
  std::filesystem::copy(path() + "/tokenizer_config.json", folder.path());
  const auto file = folder.path() / "tokenizer.model";
  for (const auto size : {size_t{0}, size_t{1}, size_t{2}, bytes.size() - 1}) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes.substr(0, size);
    EXPECT_THROW(Tokenizer{file.string()}, std::runtime_error) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, SentencePiecesBesidePython,
                         ::testing::Values("t5", "t5_few_extra_ids", "xlm_roberta", "llama",
                                           "llama_legacy", "llama_without_space", "gemma"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace heed::examples::of_sentence_pieces
