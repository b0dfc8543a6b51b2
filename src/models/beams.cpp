// SPDX-License-Identifier: BSD-3-Clause
#include "models/beams.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "modules/count.h"

namespace heed::detail {

namespace {

constexpr auto kImpossible = -std::numeric_limits<double>::infinity();

}  // namespace

Beams::Beams(const std::vector<int64_t>& prompt, const BeamSearchOptions& options)
    : options_(options), prompt_(prompt.size()), running_{{prompt, 0.0}} {}

/// Each beam can end in as many ways as there are end tokens, and num_beams that do not end must be
/// left.
int64_t Beams::candidates() const {
  const auto ends = std::max<int64_t>(static_cast<int64_t>(options_.end_tokens().size()), 1);
  return (Count(options_.num_beams()) * (ends + 1)).value();
}

double Beams::score_of(double sum, int64_t length) const {
  return sum / std::pow(static_cast<double>(length), options_.length_penalty());
}

std::vector<size_t> Beams::advance(std::vector<Continuation> continuations) {
  const auto best_first = [](const Continuation& a, const Continuation& b) {
    return std::tuple(-a.score, a.beam, a.token) < std::tuple(-b.score, b.beam, b.token);
  };
  std::sort(continuations.begin(), continuations.end(), best_first);
  ++length_;
  const auto& ends = options_.end_tokens();
  const auto beams = static_cast<size_t>(options_.num_beams());
  std::vector<Beam> next;
  std::vector<size_t> parents;
  std::vector<BeamHypothesis> ended;
  for (size_t rank = 0; rank < continuations.size() && next.size() < beams; ++rank) {
    const auto& [beam, token, score] = continuations[rank];
    if (score == kImpossible) break;
    const bool ends_here = length_ == options_.max_new_tokens() ||
                           std::find(ends.begin(), ends.end(), token) != ends.end();
    if (ends_here && rank >= beams) continue;  // it is worse than those that go on
    auto text = running_[beam].text;
    text.push_back(token);
    if (ends_here) {
      text.erase(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(prompt_));
      ended.push_back({std::move(text), score_of(score, length_)});
    } else {
      next.push_back({std::move(text), score});
      parents.push_back(beam);
    }
  }
  running_ = std::move(next);
  finish(std::move(ended));
  if (!is_done()) return parents;
  running_.clear();
  return {};
}

/// Keeps the best num_beams of the finished texts; of equal ones, those that ended first.
void Beams::finish(std::vector<BeamHypothesis> texts) {
  std::move(texts.begin(), texts.end(), std::back_inserter(finished_));
  std::stable_sort(finished_.begin(), finished_.end(),
                   [](const auto& a, const auto& b) { return a.score > b.score; });
  const auto most = static_cast<size_t>(options_.num_beams());
  if (finished_.size() > most) finished_.resize(most);
}

bool Beams::is_done() const {
  if (running_.empty()) return true;
  if (static_cast<int64_t>(finished_.size()) < options_.num_beams()) return false;
  if (options_.early_stopping() == EarlyStopping::immediate) return true;
  const bool may_grow =
      options_.early_stopping() == EarlyStopping::never && options_.length_penalty() > 0.0;
  const auto length = may_grow ? options_.max_new_tokens() : length_;
  return score_of(running_.front().score, length) <= finished_.back().score;
}

std::vector<BeamHypothesis> Beams::found() const {
  const auto count =
      std::min(finished_.size(), static_cast<size_t>(options_.num_return_sequences()));
  return {finished_.begin(), finished_.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace heed::detail
