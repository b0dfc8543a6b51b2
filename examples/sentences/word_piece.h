// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace heed::examples {

/// BERT's uncased tokenizer. Text is cleaned, lower-cased and stripped of accents, split at spaces,
/// punctuation and Chinese characters, and each word into the longest pieces that the vocabulary
/// holds (Devlin et al. 2019, arXiv:1810.04805). The ids are those of Hugging Face's tokenizers.
class WordPieceTokenizer {
 public:
  /// The file has one piece per line; a piece's id is the number of its line, from 0. Pieces that
  /// continue a word begin with "##". Throws std::runtime_error when the file is missing, or lacks
  /// one of BERT's special pieces.
  explicit WordPieceTokenizer(const std::string& vocabulary_path);

  /// Returns [CLS], the text's ids and [SEP]. Ids beyond `max_length` (at least 2) in total are
  /// left out. Special pieces in the text become their own ids. Throws std::runtime_error when the
  /// text is not UTF-8.
  std::vector<int64_t> encode(std::string_view text, size_t max_length) const;

 private:
  Tokenizer tokenizer_;
};

}  // namespace heed::examples
