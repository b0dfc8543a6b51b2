// SPDX-License-Identifier: BSD-3-Clause
#include "word_piece.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "support/files.h"

namespace heed::examples {

namespace {

using nlohmann::json;

/// The pieces and their ids. Of a piece that occurs twice, the later one counts.
json read_pieces(const std::string& path) {
  auto file = open_input(path);
  auto pieces = json::object();
  size_t id = 0;
  for (std::string piece; std::getline(file, piece); ++id) {
    if (!piece.empty() && piece.back() == '\r') piece.pop_back();
    pieces[piece] = id;
  }
  return pieces;
}

/// BERT's tokenizer, as a file tokenizer.json describes it.
json describe(const json& pieces, const std::string& path) {
  auto description = json::parse(R"({
    "added_tokens": [],
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                   "strip_accents": true, "lowercase": true},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "BertProcessing"},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100}
  })");
  for (const auto* special : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    if (!pieces.contains(special)) {
      throw std::runtime_error(path + " is no vocabulary of BERT: it holds no " + special);
    }
    auto token = json::parse(R"({"special": true, "normalized": false, "single_word": false,
                                 "lstrip": false, "rstrip": false})");
    token["content"] = special;
    token["id"] = pieces[special];
    description["added_tokens"].push_back(token);
  }
  description["post_processor"]["cls"] = json::array({"[CLS]", pieces["[CLS]"]});
  description["post_processor"]["sep"] = json::array({"[SEP]", pieces["[SEP]"]});
  description["model"]["vocab"] = pieces;
  return description;
}

}  // namespace

WordPieceTokenizer::WordPieceTokenizer(const std::string& vocabulary_path)
    : tokenizer_(
          Tokenizer::of_description(describe(read_pieces(vocabulary_path), vocabulary_path))) {}

std::vector<int64_t> WordPieceTokenizer::encode(std::string_view text, size_t max_length) const {
  auto ids = tokenizer_.encode(text);
  const auto end = ids.back();
  ids.resize(std::min(ids.size(), max_length));
  ids.back() = end;
  return ids;
}

}  // namespace heed::examples
