#include "word_piece.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/input_file.h"
#include "text/normalizers.h"
#include "text/pre_tokenizers.h"
#include "text/unicode.h"
#include "text/work_limit.h"

namespace heed::examples {

namespace {

constexpr std::array kSpecials = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

std::vector<std::string> read_pieces(const std::string& path) {
  auto file = open_input(path);
  std::vector<std::string> pieces;
  for (std::string piece; std::getline(file, piece);) {
    if (!piece.empty() && piece.back() == '\r') piece.pop_back();
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace

WordPieceTokenizer::WordPieceTokenizer(const std::string& vocabulary_path) {
  const auto pieces = read_pieces(vocabulary_path);
  size_ = static_cast<int64_t>(pieces.size());
  text::Vocabulary vocabulary;
  // Of a piece that occurs twice, the later one counts.
  for (auto id = size_ - 1; id >= 0; --id) vocabulary.add(pieces[static_cast<size_t>(id)], id);
  const auto id_of = [&](const std::string& special) {
    const auto id = vocabulary.id_of(special);
    if (!id) {
      throw std::runtime_error(vocabulary_path + " is no vocabulary of BERT: it holds no " +
                               special);
    }
    return *id;
  };
  std::vector<std::pair<std::string, int64_t>> specials;
  for (const auto* special : kSpecials) specials.emplace_back(special, id_of(special));
  specials_.add_specials(specials);
  begin_ = id_of("[CLS]");
  end_ = id_of("[SEP]");
  text::WordPieceOptions options;
  options.unknown = id_of("[UNK]");
  pieces_ = std::make_unique<text::WordPiece>(std::move(vocabulary), std::move(options));
}

std::vector<int64_t> WordPieceTokenizer::encode(std::string_view text, size_t max_length) const {
  text::check_utf8(text);
  const auto limit = text::WorkLimit::of_text(text.size());
  std::vector<int64_t> ids = {begin_};
  const auto on_text = [&](std::string_view part) {
    if (ids.size() >= max_length) return;
    text::split_for_bert(text::normalize_for_bert(part),
                         [&](std::string_view word) { pieces_->append_word(word, ids); });
  };
  specials_.split(text, false, on_text, [&ids](int64_t id) { ids.push_back(id); });
  ids.resize(std::min(ids.size(), max_length - 1));
  ids.push_back(end_);
  return ids;
}

}  // namespace heed::examples
