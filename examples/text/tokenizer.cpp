// SPDX-License-Identifier: BSD-3-Clause
#include "tokenizer.h"

#include <algorithm>
#include <deque>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "added_tokens.h"
#include "json_fields.h"
#include "parts.h"
#include "seeded_hash.h"
#include "sentence_piece_folder.h"
#include "support/files.h"
#include "support/json_file.h"
#include "unicode.h"
#include "work_limit.h"

namespace heed::examples {

namespace {

constexpr int64_t kStepsOfReading = 100'000'000;  // to normalize what added tokens are spelled like
constexpr size_t kLongestCharacter = 4;           // which is held back until its last byte

/// The ids of the words that a text repeats.
class WordCache {
 public:
  explicit WordCache(const text::Model& model) : model_(model) {}

  void append_word(std::string_view word, std::vector<int64_t>& ids) {
    const auto found = found_.find(word);
    if (found != found_.end()) {
      ids.insert(ids.end(), found->second->ids.begin(), found->second->ids.end());
      return;
    }
    const auto begin = static_cast<std::ptrdiff_t>(ids.size());
    model_.append_word(word, ids);
    if (word.size() > kLongestWord || words_.size() == kMostWords) return;
    words_.push_back({std::string(word), {ids.begin() + begin, ids.end()}});
    found_.emplace(words_.back().spelling, &words_.back());
  }

 private:
  static constexpr size_t kMostWords = 65536, kLongestWord = 64;  // some 10 MB at most

  struct Word {
    std::string spelling;
    std::vector<int64_t> ids;
  };

  const text::Model& model_;
  std::deque<Word> words_;
  // The keys lie in words_.
  std::unordered_map<std::string_view, const Word*, text::SeededHash> found_;
};

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(text::JsonFields fields)
      : model(text::read_model(fields.at("model"))),
        normalize(text::read_normalizer(fields.find("normalizer"))),
        added(fields.find("added_tokens"), *model.vocabulary, normalize),
        pre_tokenize(text::read_pre_tokenizer(fields.find("pre_tokenizer"), false)),
        pre_tokenize_beginning(text::read_pre_tokenizer(fields.find("pre_tokenizer"), true)),
        surroundings(text::read_post_processor(
            fields.find("post_processor"), [this](int64_t id) { return token_of(id) != nullptr; })),
        decoder(text::read_decoder(fields.find("decoder"))) {
    if (const auto version = fields.find_text("version"); version && *version != "1.0") {
      text::refuse("version", *version, "must be 1.0");
    }
    // Other normalizers may move the beginning, which only the first word has.
    const auto* rule = fields.find("pre_tokenizer");
    if (rule != nullptr && rule->value("prepend_scheme", "") == "first" &&
        fields.find("normalizer") != nullptr) {
      text::refuse("pre_tokenizer.prepend_scheme", "first", "must not stand beside a normalizer");
    }
    fields.pass_over({"truncation", "padding"});
    fields.expect_no_others();
  }

  /// Appends the ids of a text, without those around it.
  void append_ids(std::string_view text, std::vector<int64_t>& ids) const;

  const std::string* token_of(int64_t id) const {
    const auto* spelling = added.spelling_of(id);
    return spelling != nullptr ? spelling : model.vocabulary->token_of(id);
  }

  text::Model model;
  text::Normalizer normalize;
  text::AddedTokens added;
  text::PreTokenizer pre_tokenize, pre_tokenize_beginning;
  text::Surroundings surroundings;
  text::Decoder decoder;
};

void Tokenizer::Parts::append_ids(std::string_view text, std::vector<int64_t>& ids) const {
  text::check_utf8(text);
  const auto limit = text::WorkLimit::of_text(text.size());
  WordCache words(model);
  const auto on_word = [&](std::string_view word) { words.append_word(word, ids); };
  const auto on_token = [&ids](int64_t id) { ids.push_back(id); };
  const auto on_text = [&](std::string_view part) {
    const auto normalized = normalize(part);
    const auto on_normalized = [&](std::string_view of_part) {
      const bool begins = part.data() == text.data() && of_part.data() == normalized.data();
      (begins ? pre_tokenize_beginning : pre_tokenize)(of_part, on_word);
    };
    added.split(normalized, true, on_normalized, on_token);
  };
  added.split(text, false, on_text, on_token);
}

struct TextStream::State {
  State(std::shared_ptr<const Tokenizer::Parts> of_tokenizer, bool skips)
      : parts(std::move(of_tokenizer)), skips_special_tokens(skips) {
    begin();
  }

  void begin() {
    steps.clear();
    for (const auto& make : parts->decoder) steps.push_back(make());
  }

  /// Passes a piece through the steps from `first` on.
  void pass(size_t first, std::string piece, std::string& text) {
    text::WorkLimit::spend_bytes(piece.size());
    if (first == steps.size()) {
      text += piece;
      return;
    }
    steps[first].push(std::move(piece),
                      [&, first](std::string next) { pass(first + 1, std::move(next), text); });
  }

  std::shared_ptr<const Tokenizer::Parts> parts;
  bool skips_special_tokens;
  std::vector<text::DecodingStep> steps;
};

TextStream::TextStream(std::shared_ptr<State> state) : state_(std::move(state)) {}

std::string TextStream::push(int64_t id) {
  const auto& parts = *state_->parts;
  std::string text;
  const auto* token = parts.token_of(id);
  if (token == nullptr) return text;
  if (state_->skips_special_tokens && parts.added.is_special(*token)) return text;
  const auto limit = text::WorkLimit::of_text(token->size());
  state_->pass(0, *token, text);
  return text;
}

std::string TextStream::finish() {
  const auto limit = text::WorkLimit::of_text(kLongestCharacter);
  std::string text;
  for (size_t i = 0; i < state_->steps.size(); ++i) {
    state_->steps[i].finish(
        [&, i](std::string next) { state_->pass(i + 1, std::move(next), text); });
  }
  state_->begin();
  return text;
}

Tokenizer::Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

Tokenizer Tokenizer::of_description(const nlohmann::json& description) {
  const text::WorkLimit limit(kStepsOfReading);
  return Tokenizer(std::make_shared<const Parts>(text::JsonFields(description, "")));
}

Tokenizer::Tokenizer(const std::string& path) {
  constexpr std::string_view kModel = ".model";
  const bool is_model = path.size() >= kModel.size() &&
                        path.compare(path.size() - kModel.size(), kModel.size(), kModel) == 0;
  auto file = open_file(path);
  try {
    const text::WorkLimit limit(kStepsOfReading);
    *this = of_description(is_model ? text::describe_sentence_pieces(path) : read_json(file));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(path + ": " + error.what());
  }
}

std::string Tokenizer::file_in(const std::string& folder) {
  const auto path = folder + "/tokenizer.json";
  return exists(path) ? path : text::sentence_piece_file(folder);
}

std::vector<int64_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<int64_t> ids;
  if (add_special_tokens) ids = parts_->surroundings.before;
  parts_->append_ids(text, ids);
  if (add_special_tokens) {
    const auto& behind = parts_->surroundings.behind;
    ids.insert(ids.end(), behind.begin(), behind.end());
  }
  return ids;
}

EncodedPair Tokenizer::encode_pair(std::string_view first, std::string_view second,
                                   bool add_special_tokens) const {
  using Kind = text::PairPart::Kind;
  const auto& parts = parts_->surroundings.pair;
  if (parts.empty()) {
    throw std::runtime_error("the tokenizer's post_processor does not say how pairs are joined");
  }
  EncodedPair pair;
  for (const auto& [kind, type, tokens] : parts) {
    if (kind != Kind::tokens) {
      parts_->append_ids(kind == Kind::first ? first : second, pair.ids);
    } else if (add_special_tokens) {
      pair.ids.insert(pair.ids.end(), tokens.begin(), tokens.end());
    }
    pair.types.resize(pair.ids.size(), type);
  }
  return pair;
}

const std::vector<int64_t>& Tokenizer::tokens_before() const { return parts_->surroundings.before; }

std::string Tokenizer::decode(const std::vector<int64_t>& ids, bool skip_special_tokens) const {
  auto stream = decode_stream(skip_special_tokens);
  std::string text;
  for (const auto id : ids) text += stream.push(id);
  return text + stream.finish();
}

TextStream Tokenizer::decode_stream(bool skip_special_tokens) const {
  return TextStream(std::make_shared<TextStream::State>(parts_, skip_special_tokens));
}

int64_t Tokenizer::size() const {
  const auto& vocabulary = *parts_->model.vocabulary;
  return std::max(vocabulary.largest_id(), parts_->added.vocabulary().largest_id()) + 1;
}

std::optional<int64_t> Tokenizer::id_of(std::string_view token) const {
  const auto id = parts_->added.vocabulary().id_of(token);
  return id ? id : parts_->model.vocabulary->id_of(token);
}

}  // namespace heed::examples
