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

}  // namespace

Model read_model(const Json& json) {
  JsonFields fields(json, "model");
  const auto type = type_of(fields);
  const bool is_word_piece = type == "WordPiece";
  if (!is_word_piece && type != "BPE") refuse("model.type", type, "must be BPE or WordPiece");
  fields.pass_over({"type"});
  Model model;
  model.vocabulary = std::make_shared<const Vocabulary>(fields.at("vocab"), "model.vocab");
  model.append_word = is_word_piece ? read_word_piece(fields, model.vocabulary)
                                    : read_byte_pair_encoding(fields, model.vocabulary);
  fields.expect_no_others();
  return model;
}

}  // namespace heed::examples::text
