#include <algorithm>
#include <string>
#include <utility>

#include "model.h"
#include "unicode.h"
#include "work_limit.h"

namespace heed::examples::text {

namespace {

struct WordPieceOptions {
  int64_t unknown;        // id of words that the pieces cannot make
  std::string continues;  // before pieces that continue a word
  int64_t longest_word;   // in characters; longer ones are unknown
};

/// Splits a word into the longest piece that it begins with, then the longest that its rest does,
/// and so on (Devlin et al. 2019, arXiv:1810.04805).
class WordPiece : public Model {
 public:
  WordPiece(Vocabulary vocabulary, WordPieceOptions options)
      : Model(std::move(vocabulary)), options_(std::move(options)) {}

  void append_word(std::string_view word, std::vector<int64_t>& ids) const override {
    const auto known = ids.size();
    bool is_known = count_characters(word) <= static_cast<size_t>(options_.longest_word);
    std::string piece;
    for (size_t begin = 0; is_known && begin < word.size();) {
      piece = begin > 0 ? options_.continues : "";
      const auto prefix = piece.size();
      piece += word.substr(begin, vocabulary().longest_token());
      const auto id_of_piece = [&] {
        WorkLimit::spend(1 + static_cast<int64_t>(piece.size() / 32));  // its hash
        return vocabulary().id_of(piece);
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
      ids.push_back(options_.unknown);
    }
  }

 private:
  WordPieceOptions options_;
};

}  // namespace

std::unique_ptr<Model> read_word_piece(const Json& model) {
  JsonFields fields(model, "model");
  fields.pass_over({"type"});
  Vocabulary vocabulary(fields.at("vocab"), "model.vocab");
  const auto unknown = fields.text("unk_token");
  const auto id = vocabulary.id_of(unknown);
  if (!id) refuse("model.unk_token", unknown, "must be in model.vocab");
  WordPieceOptions options{*id, fields.text("continuing_subword_prefix"),
                           fields.whole_number("max_input_chars_per_word", kLargestId)};
  fields.expect_no_others();
  return std::make_unique<WordPiece>(std::move(vocabulary), std::move(options));
}

}  // namespace heed::examples::text
