#include "added_tokens.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "pattern.h"
#include "regex.h"
#include "unicode.h"

namespace heed::examples::text {

namespace {

AddedToken read_added_token(JsonFields& fields) {
  AddedToken token;
  token.content = fields.text("content");
  if (token.content.empty()) refuse(fields.place_of("content"), "", "must not be empty");
  token.id = fields.whole_number("id", kLargestId);
  token.special = fields.boolean("special");
  token.normalized = fields.boolean("normalized");
  token.single_word = fields.boolean("single_word");
  token.lstrip = fields.boolean("lstrip");
  token.rstrip = fields.boolean("rstrip");
  fields.expect_no_others();
  return token;
}

size_t before_spaces(std::string_view text, size_t end) {
  while (end > 0) {
    const auto begin = character_before(text, end);
    auto next = begin;
    if (!is_white_space(next_character(text, next))) break;
    end = begin;
  }
  return end;
}

size_t behind_spaces(std::string_view text, size_t begin) {
  for (auto next = begin; begin < text.size(); begin = next) {
    if (!is_white_space(next_character(text, next))) break;
  }
  return begin;
}

bool is_of_word(std::string_view character) {
  static const Regex word(std::string("[") + kWordCharacters + "]");
  bool found = false;
  word.for_each_match(character, [&found](size_t, size_t) { found = true; });
  return found;
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_of_word(text.substr(character_before(text, text.size())));
}

bool begins_with_word(std::string_view text) {
  size_t end = 0;
  if (!text.empty()) next_character(text, end);
  return end > 0 && is_of_word(text.substr(0, end));
}

/// Whether no word goes on before or behind it.
bool stands_alone(std::string_view text, const TokenFinder::Found& found) {
  return !ends_with_word(text.substr(0, found.begin)) && !begins_with_word(text.substr(found.end));
}

}  // namespace

bool TokenFinder::add(const std::string& spelling, const AddedToken* token) {
  spellings_.push_back(spelling);
  if (!tokens_.emplace(spellings_.back(), token).second) return false;
  auto& sizes = sizes_[static_cast<unsigned char>(spelling[0])];
  const auto place =
      std::lower_bound(sizes.begin(), sizes.end(), spelling.size(), std::greater<>());
  if (place == sizes.end() || *place != spelling.size()) sizes.insert(place, spelling.size());
  return true;
}

std::optional<TokenFinder::Found> TokenFinder::find(std::string_view text, size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (auto begin = from; begin < text.size(); ++begin) {
    for (const auto size : sizes_[static_cast<unsigned char>(text[begin])]) {
      if (size > text.size() - begin) continue;
      const auto found = tokens_.find(text.substr(begin, size));
      if (found != tokens_.end()) return Found{begin, begin + size, found->second};
    }
  }
  return std::nullopt;
}

AddedTokens::AddedTokens(const Json* added_tokens, const Vocabulary& vocabulary,
                         const Normalizer& normalize) {
  if (added_tokens == nullptr) return;
  for_each_element(*added_tokens, "added_tokens", [&](const Json& element, const auto& place) {
    JsonFields fields(element, place);
    add_read(read_added_token(fields), place, vocabulary, normalize);
  });
}

void AddedTokens::add_read(AddedToken token, const std::string& place, const Vocabulary& model,
                           const Normalizer& normalize) {
  const auto content = token.content;
  // As tokenizers numbers them, whatever the file says.
  const auto known_id = model.id_of(content);
  const auto id = known_id.value_or(static_cast<int64_t>(model.count()) + new_tokens_);
  if (!known_id) ++new_tokens_;
  if (token.id != id) {
    refuse(place + ".id", token.id,
           "must be " + std::to_string(id) + ", the id of " + in_quotes(content) +
               (known_id ? " in model.vocab" : " behind those of model.vocab"));
  }
  if (!known_id && model.token_of(id) != nullptr) {
    refuse(place + ".id", id, "must not be the id of " + in_quotes(*model.token_of(id)) + " too");
  }
  if (vocabulary_.id_of(content)) refuse(place + ".content", content, "must not be added twice");
  const auto spelling = token.normalized ? normalize(content) : content;
  if (spelling.empty()) refuse(place + ".content", content, "is empty when it is normalized");
  if (!add(std::move(token), spelling)) {
    refuse(place + ".content", content, "is another added token when it is normalized");
  }
}

void AddedTokens::add_special(const std::string& content, int64_t id) {
  AddedToken token;
  token.content = content;
  token.id = id;
  token.special = true;
  add(std::move(token), content);
}

bool AddedTokens::add(AddedToken token, const std::string& spelling) {
  vocabulary_.add(token.content, token.id);
  if (spelling != token.content) normalized_spellings_[token.id] = spelling;
  if (token.special) specials_.insert(token.content);
  tokens_.push_back(std::move(token));
  auto& finder = tokens_.back().normalized ? in_normalized_text_ : in_text_;
  return finder.add(spelling, &tokens_.back());
}

void AddedTokens::split(std::string_view text, bool normalized, const OnText& on_text,
                        const OnToken& on_token) const {
  const auto& finder = normalized ? in_normalized_text_ : in_text_;
  size_t done = 0;
  auto found = finder.find(text, 0);
  for (; found; found = finder.find(text, found->end)) {
    const auto& token = *found->token;
    if (token.single_word && !stands_alone(text, *found)) continue;
    auto begin = found->begin;
    if (token.lstrip) begin = std::max(before_spaces(text, begin), done);
    if (done < begin) on_text(text.substr(done, begin - done));
    on_token(token.id);
    // This may lie behind the begin of the next token, if that one is of spaces.
    done = token.rstrip ? behind_spaces(text, found->end) : found->end;
  }
  if (done < text.size()) on_text(text.substr(done));
}

const std::string* AddedTokens::spelling_of(int64_t id) const {
  const auto found = normalized_spellings_.find(id);
  return found == normalized_spellings_.end() ? vocabulary_.token_of(id) : &found->second;
}

}  // namespace heed::examples::text
