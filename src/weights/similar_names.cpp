// SPDX-License-Identifier: BSD-3-Clause
#include "weights/similar_names.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace heed::detail {

namespace {

/// Levenshtein's distance.
size_t edit_distance(const std::string& from, const std::string& to) {
  std::vector<size_t> row(to.size() + 1);  // distances from a prefix of `from` to each of `to`'s
  std::iota(row.begin(), row.end(), size_t{0});
  for (const char c : from) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t replaced = diagonal + (c != to[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

/// Whether a name has another one at its end, behind a dot, or at its begin, before a dot.
bool extends(const std::string& longer, const std::string& name) {
  if (name.empty() || longer.size() < name.size() + 2) return false;
  const auto prefix = longer.size() - name.size();
  return (longer[prefix - 1] == '.' && longer.compare(prefix, name.size(), name) == 0) ||
         (longer[name.size()] == '.' && longer.compare(0, name.size(), name) == 0);
}

}  // namespace

std::optional<size_t> unlikeness(const std::string& one, const std::string& other, size_t limit) {
  if (limit > 0 && (extends(one, other) || extends(other, one))) return 0;
  const auto longer = std::max(one.size(), other.size());
  const auto least = 2 * longer - one.size() - other.size();
  if (least >= limit) return std::nullopt;
  const auto distance = edit_distance(one, other);
  return distance < limit ? std::optional(distance) : std::nullopt;
}

}  // namespace heed::detail
