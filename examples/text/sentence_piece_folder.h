#pragma once

#include <string>

#include "json_fields.h"

namespace heed::examples::text {

/// The name of the file of SentencePiece's model in a folder that has one; else empty.
std::string sentence_piece_file(const std::string& folder);

/// What tokenizer.json would say of such a file, by transformers 5: of the families T5,
/// XLM-RoBERTa, Llama and Gemma, which the files beside it name, with their special tokens. Throws
/// std::runtime_error for others, and for what is not understood.
Json describe_sentence_pieces(const std::string& path);

}  // namespace heed::examples::text
