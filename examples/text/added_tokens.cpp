// SPDX-License-Identifier: BSD-3-Clause
#include "added_tokens.h"

#include <algorithm>
#include <numeric>

#include "pattern.h"
#include "unicode.h"
#include "work_limit.h"

namespace heed::examples::text {

namespace {

constexpr int64_t kStepsOfNarrowing = 16;

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

void TokenFinder::prepare() {
  sorted_.clear();
  for (const auto& spelled : tokens_) sorted_.push_back(&spelled);
  first_of_byte_.fill(0);
  for (const auto* spelled : sorted_) {
    ++first_of_byte_[static_cast<unsigned char>(spelled->first[0]) + size_t{1}];
  }
  std::partial_sum(first_of_byte_.begin(), first_of_byte_.end(), first_of_byte_.begin());
}

/// Narrows the tokens that begin as the text does, byte by byte; nullptr if none is there.
const TokenFinder::Spelled* TokenFinder::longest_at(std::string_view text) const {
  const auto first = static_cast<unsigned char>(text[0]);
  auto begin = sorted_.begin() + static_cast<std::ptrdiff_t>(first_of_byte_[first]);
  auto end = sorted_.begin() + static_cast<std::ptrdiff_t>(first_of_byte_[first + size_t{1}]);
  const Spelled* longest = nullptr;
  size_t size = 1;
  for (; begin != end; ++size) {
    if ((*begin)->first.size() == size) longest = *begin++;
    if (size == text.size()) break;
    const auto byte_of = [size](const Spelled* spelled) {
      return static_cast<unsigned char>(spelled->first[size]);
    };
    const auto next = static_cast<unsigned char>(text[size]);
    begin = std::partition_point(begin, end, [&](auto* one) { return byte_of(one) < next; });
    end = std::partition_point(begin, end, [&](auto* one) { return byte_of(one) == next; });
  }
  WorkLimit::spend(static_cast<int64_t>(size) * kStepsOfNarrowing);
  return longest;
}

std::optional<TokenFinder::Found> TokenFinder::find(std::string_view text, size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (auto begin = from; begin < text.size(); ++begin) {
    if (const auto* found = longest_at(text.substr(begin))) {
      return Found{begin, begin + found->first.size(), found->second};
    }
  }
  return std::nullopt;
}

AddedTokens::AddedTokens(const Json* added_tokens, const Vocabulary& vocabulary,
                         const Normalizer& normalize) {
  if (added_tokens == nullptr) return;
  for_each_element(*added_tokens, "added_tokens", [&](const Json& element, const auto& place) {
    JsonFields fields(element, place);
    add(read_added_token(fields), place, vocabulary, normalize);
  });
  in_text_.prepare();
  in_normalized_text_.prepare();
}

void AddedTokens::add(AddedToken token, const std::string& place, const Vocabulary& model,
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
  vocabulary_.add(content, id);
  if (spelling != content) normalized_spellings_[id] = spelling;
  if (token.special) specials_.insert(content);
  tokens_.push_back(std::move(token));
  auto& finder = tokens_.back().normalized ? in_normalized_text_ : in_text_;
  if (!finder.add(spelling, &tokens_.back())) {
    refuse(place + ".content", content, "is another added token when it is normalized");
  }
}

void AddedTokens::split(std::string_view text, bool normalized, const OnText& on_text,
                        const OnToken& on_token) const {
  const auto& finder = normalized ? in_normalized_text_ : in_text_;
  size_t done = 0, spaces_end = 0;
  auto found = finder.find(text, 0);
  for (; found; found = finder.find(text, found->end)) {
    const auto& token = *found->token;
    if (token.single_word && !stands_alone(text, *found)) continue;
    auto begin = found->begin;
    if (token.lstrip && done < begin) begin = before_spaces(text, done, begin);
    if (done < begin) on_text(text.substr(done, begin - done));
    on_token(token.id);
    done = found->end;
    if (!token.rstrip) continue;
    // These may be tokens themselves, which come next; their end is not looked for again.
    if (spaces_end < done) spaces_end = behind_spaces(text, done);
    done = spaces_end;
  }
  if (done < text.size()) on_text(text.substr(done));
}

const std::string* AddedTokens::spelling_of(int64_t id) const {
  const auto found = normalized_spellings_.find(id);
  return found == normalized_spellings_.end() ? vocabulary_.token_of(id) : &found->second;
}

}  // namespace heed::examples::text
