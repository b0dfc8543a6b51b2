// SPDX-License-Identifier: BSD-3-Clause
#include "vocabulary.h"

#include <algorithm>

namespace heed::examples::text {

Vocabulary::Vocabulary(const Json& ids, const std::string& place) {
  if (!ids.is_object()) refuse(place, ids, "must be an object");
  tokens_.reserve(ids.size());
  ids_.reserve(ids.size());
  for (const auto& [token, value] : ids.items()) {
    if (is_whole_number(value, kLargestId) && add(token, value.get<int64_t>())) continue;
    const auto place_of_token = place + "[" + in_quotes(token) + "]";
    const auto id = whole_number_of(value, place_of_token, kLargestId);
    refuse(place_of_token, value, "must not be the id of " + in_quotes(*token_of(id)) + " too");
  }
}

bool Vocabulary::add(const std::string& token, int64_t id) {
  if (ids_.count(token) != 0) return false;
  const auto [added, is_new] = tokens_.emplace(id, token);
  if (!is_new) return false;
  ids_.emplace(added->second, id);
  largest_id_ = std::max(largest_id_, id);
  longest_token_ = std::max(longest_token_, token.size());
  return true;
}

std::optional<int64_t> Vocabulary::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* Vocabulary::token_of(int64_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

}  // namespace heed::examples::text
