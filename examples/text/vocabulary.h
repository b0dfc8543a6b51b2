// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "json_fields.h"
#include "seeded_hash.h"

namespace heed::examples::text {

/// Tokens and their ids, which are unique but need not be consecutive.
class Vocabulary {
 public:
  Vocabulary() = default;
  /// From an object of tokens and ids. Throws std::runtime_error when an id is none or occurs
  /// twice.
  Vocabulary(const Json& ids, const std::string& place);
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  /// Returns false, and adds nothing, when the token or the id is there already.
  bool add(const std::string& token, int64_t id);

  std::optional<int64_t> id_of(std::string_view token) const;
  /// nullptr when no token has this id.
  const std::string* token_of(int64_t id) const;

  size_t count() const { return tokens_.size(); }
  /// -1 when it is empty.
  int64_t largest_id() const { return largest_id_; }
  /// In bytes.
  size_t longest_token() const { return longest_token_; }

 private:
  std::unordered_map<int64_t, std::string, SeededHash> tokens_;
  // The keys lie in tokens_.
  std::unordered_map<std::string_view, int64_t, SeededHash> ids_;
  int64_t largest_id_ = -1;
  size_t longest_token_ = 0;
};

}  // namespace heed::examples::text
