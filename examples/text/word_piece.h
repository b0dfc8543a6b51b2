#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model.h"

namespace heed::examples::text {

struct WordPieceOptions {
  int64_t unknown = 0;           ///< id of words that the pieces cannot make
  std::string continues = "##";  ///< before pieces that continue a word
  int64_t longest_word = 100;    ///< in characters; longer ones are unknown
};

/// Splits a word into the longest piece that it begins with, then the longest that its rest does,
/// and so on (Devlin et al. 2019, arXiv:1810.04805).
class WordPiece : public Model {
 public:
  WordPiece(Vocabulary vocabulary, WordPieceOptions options);

  void append_word(std::string_view word, std::vector<int64_t>& ids) const override;

 private:
  WordPieceOptions options_;
};

std::unique_ptr<Model> read_word_piece(const Json& model);

}  // namespace heed::examples::text
