// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace heed::examples {

/// Turns tokens into text one at a time. What it returns never ends within a character.
struct Speller {
  /// The text that this token completes, which may be empty.
  std::function<std::string(int64_t)> push;
  /// The text that was held back because its last character is not complete.
  std::function<std::string()> finish;
};

/// How the text of a language model becomes tokens, and tokens become text.
struct Codec {
  using Encode = std::function<std::vector<int64_t>(std::string_view)>;

  /// With the tokens that the model expects around a text. Those that the text begins with by
  /// itself are not put before it again. Throws std::runtime_error when the text cannot be encoded.
  Encode encode;
  /// Without the tokens around a text.
  Encode encode_raw;
  std::function<Speller()> speller;
  int64_t size;  ///< tokens are below this number

  std::vector<int64_t> tokens_of(std::string_view text, bool raw) const {
    return raw ? encode_raw(text) : encode(text);
  }
};

/// The tokens are the bytes of the text.
std::shared_ptr<const Codec> byte_codec();

/// The text is the tokens themselves, as numbers below `size` with spaces between them.
std::shared_ptr<const Codec> number_codec(int64_t size);

/// The tokens of a file that Tokenizer reads. Throws std::runtime_error when it is missing or not
/// understood.
std::shared_ptr<const Codec> tokenizer_codec(const std::string& path);

}  // namespace heed::examples
