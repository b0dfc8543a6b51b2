#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "json_fields.h"
#include "vocabulary.h"

namespace heed::examples::text {

/// Turns words into the ids of a vocabulary.
class Model {
 public:
  explicit Model(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  virtual ~Model() = default;

  /// The word is UTF-8 and not empty.
  virtual void append_word(std::string_view word, std::vector<int64_t>& ids) const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
};

/// Byte-pair encoding: two neighboring tokens of a word merge into one, the pair that was learned
/// first before all others, until no pair is left that was learned (Sennrich et al. 2016,
/// arXiv:1508.07909).
std::unique_ptr<Model> read_byte_pair_encoding(const Json& model);
std::unique_ptr<Model> read_word_piece(const Json& model);

/// From the field "model". Throws std::runtime_error that names what is not understood.
std::unique_ptr<Model> read_model(const Json& model);

}  // namespace heed::examples::text
