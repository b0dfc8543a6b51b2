// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "json_fields.h"

namespace heed::examples::text {

/// The name of the file of SentencePiece's model in a folder that has one; else empty.
std::string sentence_piece_file(const std::string& folder);

/// The description of the tokenizer that transformers 5 makes of such a file, as tokenizer.json has
/// it. The files beside it name the family (T5, XLM-RoBERTa, Llama or Gemma) and the special
/// tokens. Throws std::runtime_error for other families, and for what is not understood.
Json describe_sentence_pieces(const std::string& path);

}  // namespace heed::examples::text
