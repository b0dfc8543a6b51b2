// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "parts.h"
#include "unicode.h"
#include "work_limit.h"

namespace heed::examples::text {

namespace {

constexpr double kPenaltyOfUnknown = 10;  // below the least score of a piece

/// The pieces' scores, by their ids.
std::vector<double> read_scores(const Json& vocabulary) {
  std::vector<double> scores;
  for (const auto& scored : vocabulary) scores.push_back(scored[1].get<double>());
  return scores;
}

/// The best way to split the word up to a place.
struct BestEnd {
  double score = 0;
  size_t begin = std::string::npos;  // of its last piece; none: no way is known
  int64_t id = 0;                    // of this piece

  /// The first of several with the same score stays.
  void offer(double other_score, size_t other_begin, int64_t other_id) {
    if (begin == std::string::npos || other_score > score) {
      *this = {other_score, other_begin, other_id};
    }
  }
};

/// Appends the pieces from the beginning to the last place. Neighbors that are unknown are one.
void append_best(const std::vector<BestEnd>& ends, int64_t unknown, std::vector<int64_t>& ids) {
  const auto first = static_cast<std::ptrdiff_t>(ids.size());
  for (auto end = ends.size() - 1; end > 0; end = ends[end].begin) {
    const auto id = ends[end].id;
    const bool goes_on = id == unknown && static_cast<size_t>(first) < ids.size();
    if (!goes_on || ids.back() != unknown) ids.push_back(id);
  }
  std::reverse(ids.begin() + first, ids.end());
}

}  // namespace

AppendWord read_unigram(JsonFields& model, const std::shared_ptr<const Vocabulary>& vocabulary) {
  const auto unknown = model.whole_number("unk_id", kLargestId);
  if (vocabulary->token_of(unknown) == nullptr) {
    refuse("model.unk_id", unknown, "must be the id of a token");
  }
  if (model.boolean_or("byte_fallback", false)) {
    refuse("model.byte_fallback", true, "must be false in a unigram model");
  }
  const auto scores = read_scores(model.at("vocab"));
  const auto of_unknown = *std::min_element(scores.begin(), scores.end()) - kPenaltyOfUnknown;
  return [=](std::string_view word, std::vector<int64_t>& ids) {
    std::vector<BestEnd> ends(word.size() + 1);
    for (size_t begin = 0, next = 0; begin < word.size(); begin = next) {
      next_character(word, next);
      const auto so_far = ends[begin].score;
      const auto longest = std::min(word.size(), begin + vocabulary->longest_token());
      for (auto end = next; end <= longest;) {
        WorkLimit::spend(1 + static_cast<int64_t>((end - begin) / 32));  // a hash
        if (const auto id = vocabulary->id_of(word.substr(begin, end - begin))) {
          ends[end].offer(so_far + scores[static_cast<size_t>(*id)], begin, *id);
        }
        if (end == word.size()) break;
        next_character(word, end);
      }
      if (!vocabulary->id_of(word.substr(begin, next - begin))) {
        ends[next].offer(so_far + of_unknown, begin, unknown);
      }
    }
    append_best(ends, unknown, ids);
  };
}

}  // namespace heed::examples::text
