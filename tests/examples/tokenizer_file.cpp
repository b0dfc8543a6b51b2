// SPDX-License-Identifier: BSD-3-Clause
#include "tokenizer_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "text/byte_level.h"

namespace heed::test {

using nlohmann::json;

json TokenizerFile::of_bytes() {
  auto description = json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 258, "content": "<|end|>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                      "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
              "ignore_merges": true, "vocab": {"ab": 256, "abab": 257}, "merges": [["a", "b"]]}
  })");
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    examples::text::append_byte_characters(std::string(1, static_cast<char>(byte)), token);
    description["model"]["vocab"][token] = byte;
  }
  return description;
}

json TokenizerFile::of_words() {
  return json::parse(R"({
    "version": "1.0", "added_tokens": [],
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                   "strip_accents": null, "lowercase": true},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
      "pair": [],
      "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
                         "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]}}},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100,
              "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "un": 3, "##able": 4, ".": 5}}
  })");
}

TokenizerFile::TokenizerFile(json description) : description_(std::move(description)) {
  path_ = ::testing::TempDir() + "heed_tokenizer_XXXXXX";
  const int file = ::mkstemp(path_.data());
  if (file < 0) throw std::runtime_error("cannot make " + path_);
  ::close(file);
}

TokenizerFile::~TokenizerFile() { std::filesystem::remove(path_); }

void TokenizerFile::set(const std::string& pointer, const json& value) {
  description_[json::json_pointer(pointer)] = value;
}

void TokenizerFile::erase(const std::string& pointer) {
  const json::json_pointer place(pointer);
  description_[place.parent_pointer()].erase(place.back());
}

examples::Tokenizer TokenizerFile::read() const { return read_text(description_.dump()); }

examples::Tokenizer TokenizerFile::read_text(const std::string& text) const {
  std::filesystem::remove(path_);  // some file systems wait for the disk when a file is overwritten
  std::ofstream(path_) << text;
  return examples::Tokenizer(path_);
}

std::string TokenizerFile::error() const { return error_of_text(description_.dump()); }

std::string TokenizerFile::error_of_text(const std::string& text) const {
  try {
    read_text(text);
  } catch (const std::runtime_error& error) {
    const std::string message = error.what();
    const auto beginning = path_ + ": ";
    EXPECT_EQ(message.substr(0, beginning.size()), beginning);
    return message.substr(std::min(message.size(), beginning.size()));
  }
  return "";
}

}  // namespace heed::test
