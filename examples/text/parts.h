// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "json_fields.h"
#include "vocabulary.h"

/// The parts of a tokenizer, each read from the field of its name. The field may be null, but for
/// that of the model. What is not understood is an std::runtime_error that names it.
namespace heed::examples::text {

/// Changes text before it is split.
using Normalizer = std::function<std::string(std::string_view)>;
Normalizer read_normalizer(const Json* normalizer);

/// The fields "pattern" and "content" of what replaces each match by a text.
Normalizer read_replacement(JsonFields& fields);

/// The field "precompiled_charsmap", SentencePiece's table of texts and their replacements.
Normalizer read_precompiled(JsonFields& fields);

/// Receives words; they are valid during the call.
using Emit = std::function<void(std::string_view)>;
/// Splits text, which is not empty, into words.
using PreTokenizer = std::function<void(std::string_view, const Emit&)>;
/// The rules for what stands `at_beginning` of a text, or for what comes after an added token.
PreTokenizer read_pre_tokenizer(const Json* pre_tokenizer, bool at_beginning);

/// Appends the ids of a word, which is UTF-8 and not empty.
using AppendWord = std::function<void(std::string_view, std::vector<int64_t>&)>;
/// Turns words into the ids of a vocabulary.
struct Model {
  std::shared_ptr<const Vocabulary> vocabulary;
  AppendWord append_word;
};
Model read_model(const Json& model);

/// Byte-pair encoding: two neighboring tokens of a word merge into one, the pair that was learned
/// first before all others, until no pair is left that was learned (Sennrich et al. 2016,
/// arXiv:1508.07909).
AppendWord read_byte_pair_encoding(JsonFields& model,
                                   const std::shared_ptr<const Vocabulary>& vocabulary);

/// A unigram model: of all ways to split a word into pieces, the one whose scores have the largest
/// sum (Kudo 2018, arXiv:1804.10959). Sums are in float64, as in tokenizers; SentencePiece adds in
/// float32, and may take another of several ways with the same pieces.
AppendWord read_unigram(JsonFields& model, const std::shared_ptr<const Vocabulary>& vocabulary);

/// A part of a pair of texts: one of them, or special tokens.
struct PairPart {
  enum class Kind { first, second, tokens } kind;
  int64_t type;  ///< of its tokens
  std::vector<int64_t> ids = {};
};

/// The special tokens around a text, and those around a pair of texts.
struct Surroundings {
  std::vector<int64_t> before, behind;
  /// Empty if the file does not say how pairs are joined.
  std::vector<PairPart> pair = {{PairPart::Kind::first, 0}, {PairPart::Kind::second, 1}};
};
/// Refuses an id for which `is_id` is false, too.
Surroundings read_post_processor(const Json* post_processor,
                                 const std::function<bool(int64_t)>& is_id);

/// Receives text piece by piece.
using OnPiece = std::function<void(std::string)>;
/// One step from tokens to text. It takes tokens one at a time, and holds back what later ones may
/// change.
struct DecodingStep {
  std::function<void(std::string, const OnPiece&)> push;
  /// Passes on what is held back.
  std::function<void(const OnPiece&)> finish = [](const OnPiece&) {};
};
/// Makes the steps for one text.
using Decoder = std::vector<std::function<DecodingStep()>>;
Decoder read_decoder(const Json* decoder);

}  // namespace heed::examples::text
