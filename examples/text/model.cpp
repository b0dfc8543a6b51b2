// SPDX-License-Identifier: BSD-3-Clause
#include "parts.h"

#include "unicode.h"
#include "work_limit.h"

namespace heed::examples::text {

namespace {

/// Old files name no type.
std::string type_of(JsonFields fields) {
  if (fields.find("type") != nullptr) return fields.text("type");
  if (fields.find("merges") != nullptr) return "BPE";
  if (fields.find("max_input_chars_per_word") != nullptr) return "WordPiece";
  return fields.text("type");  // is missing
}

/// Splits a word into the longest piece that it begins with, then the longest that its rest does,
/// and so on (Devlin et al. 2019, arXiv:1810.04805).
AppendWord read_word_piece(JsonFields& model, const std::shared_ptr<const Vocabulary>& vocabulary) {
  const auto token = model.text("unk_token");
  const auto unknown = vocabulary->id_of(token);
  if (!unknown) refuse("model.unk_token", token, "must be in model.vocab");
  const auto continues = model.text("continuing_subword_prefix");
  const auto longest_word = model.whole_number("max_input_chars_per_word", kLargestId);
  return [=](std::string_view word, std::vector<int64_t>& ids) {
    const auto known = ids.size();
    bool is_known = count_characters(word) <= static_cast<size_t>(longest_word);
    std::string piece;
    for (size_t begin = 0; is_known && begin < word.size();) {
      piece = begin > 0 ? continues : "";
      const auto prefix = piece.size();
      piece += word.substr(begin, vocabulary->longest_token());
      const auto id_of_piece = [&] {
        WorkLimit::spend(1 + static_cast<int64_t>(piece.size() / 32));  // its hash
        return vocabulary->id_of(piece);
      };
      auto id = id_of_piece();
      while (!id && piece.size() > prefix + 1) {
        piece.pop_back();
        id = id_of_piece();
      }
      is_known = id.has_value();
      if (id) ids.push_back(*id);
      begin += piece.size() - prefix;
    }
    if (!is_known) {
      ids.resize(known);
      ids.push_back(*unknown);
    }
  };
}

/// The pieces of a list of pieces and scores, whose ids are their places in it.
Json ids_of_pieces(JsonFields& fields) {
  Json ids = Json::object();
  const auto read = [&ids](const Json& scored, const std::string& place) {
    if (!scored.is_array() || scored.size() != 2 || !scored[1].is_number()) {
      refuse(place, scored, "must be an array of a piece and its score");
    }
    const auto& piece = text_of(scored[0], place + "[0]");
    const auto id = ids.size();
    if (!ids.emplace(piece, id).second) refuse(place + "[0]", piece, "must not be there twice");
  };
  for_each_element(fields.at("vocab"), "model.vocab", read);
  return ids;
}

}  // namespace

Model read_model(const Json& json) {
  JsonFields fields(json, "model");
  const auto type = type_of(fields);
  fields.pass_over({"type"});
  Model model;
  if (type == "Unigram") {
    model.vocabulary = std::make_shared<const Vocabulary>(ids_of_pieces(fields), "model.vocab");
    model.append_word = read_unigram(fields, model.vocabulary);
  } else if (type == "BPE" || type == "WordPiece") {
    model.vocabulary = std::make_shared<const Vocabulary>(fields.at("vocab"), "model.vocab");
    model.append_word = type == "BPE" ? read_byte_pair_encoding(fields, model.vocabulary)
                                      : read_word_piece(fields, model.vocabulary);
  } else {
    refuse("model.type", type, "must be BPE, Unigram or WordPiece");
  }
  fields.expect_no_others();
  return model;
}

}  // namespace heed::examples::text
