// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "text/tokenizer.h"

namespace heed::test {

/// The description of a small tokenizer, in a file of its own. It is of bytes, whose ids are their
/// values, the tokens "ab" (256) and "abab" (257), and the special token "<|end|>" (258); or of
/// words, like BERT's.
class TokenizerFile {
 public:
  static nlohmann::json of_bytes();
  static nlohmann::json of_words();

  explicit TokenizerFile(nlohmann::json description = of_bytes());
  ~TokenizerFile();
  TokenizerFile(const TokenizerFile&) = delete;
  TokenizerFile& operator=(const TokenizerFile&) = delete;

  /// Sets or adds the value that a JSON pointer names.
  void set(const std::string& pointer, const nlohmann::json& value);
  void erase(const std::string& pointer);

  examples::Tokenizer read() const;
  examples::Tokenizer read_text(const std::string& text) const;
  /// The error of reading the file, without the path at its beginning; empty if there is none.
  std::string error() const;
  std::string error_of_text(const std::string& text) const;

  const nlohmann::json& description() const { return description_; }

 private:
  nlohmann::json description_;
  std::string path_;
};

}  // namespace heed::test
