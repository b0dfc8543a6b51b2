#include "model.h"

#include <string>

namespace heed::examples::text {

namespace {

/// Old files name no type.
std::string type_of(JsonFields& fields) {
  if (fields.find("type") != nullptr) return fields.text("type");
  if (fields.find("merges") != nullptr) return "BPE";
  if (fields.find("max_input_chars_per_word") != nullptr) return "WordPiece";
  return fields.text("type");  // is missing
}

}  // namespace

std::unique_ptr<Model> read_model(const Json& model) {
  JsonFields fields(model, "model");
  const auto type = type_of(fields);
  if (type == "BPE") return read_byte_pair_encoding(model);
  if (type == "WordPiece") return read_word_piece(model);
  refuse("model.type", type, "must be BPE or WordPiece");
}

}  // namespace heed::examples::text
