// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace heed::examples::text {

/// The parts of a model file of SentencePiece that transformers makes a tokenizer of.
struct SentencePieceModel {
  struct Piece {
    std::string text;
    float score = 0;
    bool is_unknown = false;
    bool is_control = false;       ///< a token that no text becomes
    bool is_user_defined = false;  ///< found in text before it is split
  };

  std::vector<Piece> pieces;
  bool is_unigram = true;
  bool is_byte_pair_encoding = false;
  std::string charsmap;  ///< the table of replacements of its normalization; empty: none
};

/// Reads it in Protocol Buffers' format (sentencepiece_model.proto). Throws std::runtime_error when
/// it is another file or a damaged one.
SentencePieceModel read_sentence_piece_model(std::string_view bytes);

}  // namespace heed::examples::text
