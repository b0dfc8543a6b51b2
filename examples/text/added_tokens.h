// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "json_fields.h"
#include "parts.h"
#include "seeded_hash.h"
#include "vocabulary.h"

namespace heed::examples::text {

struct AddedToken {
  std::string content;
  int64_t id = 0;
  bool special = false;
  bool normalized = false;   ///< looked for in normalized text, as it is when normalized
  bool single_word = false;  ///< not found within a word
  bool lstrip = false;       ///< takes the spaces before it
  bool rstrip = false;       ///< takes the spaces behind it
};

/// Finds the leftmost of some tokens in text, and the longest of those that begin there.
class TokenFinder {
 public:
  struct Found {
    size_t begin, end;
    const AddedToken* token;
  };

  TokenFinder() = default;
  TokenFinder(const TokenFinder&) = delete;
  TokenFinder& operator=(const TokenFinder&) = delete;

  /// Returns false when another token is spelled so.
  bool add(const std::string& spelling, const AddedToken* token) {
    return tokens_.emplace(spelling, token).second;
  }
  /// Call it when all have been added.
  void prepare();
  std::optional<Found> find(std::string_view text, size_t from) const;

 private:
  using Spelled = std::pair<const std::string, const AddedToken*>;

  const Spelled* longest_at(std::string_view text) const;

  std::map<std::string, const AddedToken*> tokens_;
  std::vector<const Spelled*> sorted_;       // of tokens_
  std::array<size_t, 257> first_of_byte_{};  // of sorted_, where each first byte begins
};

/// Tokens that are found in text before it is split into words.
class AddedTokens {
 public:
  using OnText = std::function<void(std::string_view)>;
  using OnToken = std::function<void(int64_t)>;

  /// From the field "added_tokens", which may be null. Throws std::runtime_error that names what is
  /// not understood.
  AddedTokens(const Json* added_tokens, const Vocabulary& vocabulary, const Normalizer& normalize);

  /// Calls `on_token` for each token, `on_text` for what lies between them, which is not empty. Of
  /// the tokens, only those are found that are looked for in normalized text, or only the others.
  void split(std::string_view text, bool normalized, const OnText& on_text,
             const OnToken& on_token) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  /// How a token is spelled in decoded text; nullptr when it was not added.
  const std::string* spelling_of(int64_t id) const;
  bool is_special(const std::string& spelling) const { return specials_.count(spelling) != 0; }

 private:
  void add(AddedToken token, const std::string& place, const Vocabulary& model,
           const Normalizer& normalize);

  std::deque<AddedToken> tokens_;
  Vocabulary vocabulary_;
  int64_t new_tokens_ = 0;  // that the model does not have
  std::unordered_map<int64_t, std::string, SeededHash> normalized_spellings_;
  std::unordered_set<std::string, SeededHash> specials_;
  TokenFinder in_text_;
  TokenFinder in_normalized_text_;
};

}  // namespace heed::examples::text
