// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heed::examples {

/// Turns ids into text one at a time, for text that is shown while it is made. It never returns a
/// part of a character: bytes are held back until the character is complete. All that it returns,
/// joined, is what Tokenizer::decode returns for all ids.
class TextStream {
 public:
  /// Returns the text that this id completes, which may be empty.
  std::string push(int64_t id);
  /// Returns what was held back, and begins a new text.
  std::string finish();

 private:
  friend class Tokenizer;
  struct State;
  explicit TextStream(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

/// The tokens of two texts, and for each of them its type, which models with types of tokens take:
/// for BERT, 0 in the first text and 1 in the second.
struct EncodedPair {
  std::vector<int64_t> ids, types;
};

/// Reads tokenizer.json, in which Hugging Face's tokenizers describes how text becomes ids:
/// byte-pair encoding (GPT-2, Llama, Gemma, Qwen), unigram models (T5, XLM-RoBERTa) and WordPiece
/// (BERT). Ids and text are those of that library, for the characters that both versions of Unicode
/// know. May be used by several threads at once.
class Tokenizer {
 public:
  /// Throws std::runtime_error, which names the path, the field and its value, for anything that is
  /// not understood. Only "truncation" and "padding" are left to the caller.
  /// A path that ends with ".model" is of SentencePiece: it becomes the tokenizer that transformers
  /// 5 makes of it and of the files beside it, in the families T5, XLM-RoBERTa, Llama and Gemma.
  explicit Tokenizer(const std::string& path);
  /// The path of the file in a folder of Hugging Face's: its tokenizer.json, or else its model of
  /// SentencePiece (tokenizer.model, spiece.model, sentencepiece.bpe.model); empty if it has none.
  static std::string file_in(const std::string& folder);
  /// Makes a tokenizer of what such a file may hold.
  static Tokenizer of_description(const nlohmann::json& description);

  /// Tokens that the file adds to its vocabulary are found in the text. With `add_special_tokens`,
  /// the file's post-processor puts tokens before and behind it. Throws std::runtime_error when the
  /// text is not UTF-8.
  std::vector<int64_t> encode(std::string_view text, bool add_special_tokens = true) const;

  /// Two texts as one, such as a question and an answer, joined by the file's post-processor:
  /// "[CLS] first [SEP] second [SEP]" for BERT. Without `add_special_tokens`, only their own tokens
  /// are there. Nothing is cut off. Throws std::runtime_error when a text is not UTF-8, and when
  /// the file does not say how pairs are joined.
  EncodedPair encode_pair(std::string_view first, std::string_view second,
                          bool add_special_tokens = true) const;

  /// The tokens that the post-processor puts before a text.
  const std::vector<int64_t>& tokens_before() const;

  /// Ids of no token are left out, and so are special tokens with `skip_special_tokens`. U+FFFD
  /// stands for bytes that are not UTF-8.
  std::string decode(const std::vector<int64_t>& ids, bool skip_special_tokens = true) const;
  TextStream decode_stream(bool skip_special_tokens = true) const;

  /// The largest id and one: ids are below it, but not each number below it need be an id.
  int64_t size() const;
  std::optional<int64_t> id_of(std::string_view token) const;

 private:
  friend class TextStream;
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts);

  std::shared_ptr<const Parts> parts_;
};

}  // namespace heed::examples
