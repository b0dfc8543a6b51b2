// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/beam_search.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace heed::detail {

/// A beam with one more token.
struct Continuation {
  size_t beam;    ///< its place among the beams
  int64_t token;  ///< what follows
  double score;   ///< the sum of the log-probabilities of all tokens that were generated
};

/// The beams of one prompt, and its finished texts. Knows no model: it is given continuations.
class Beams {
 public:
  /// A text that is not finished.
  struct Beam {
    std::vector<int64_t> text;  ///< the prompt, and the generated tokens
    double score = 0.0;         ///< the sum of their log-probabilities
  };

  /// The options must outlive the object.
  Beams(const std::vector<int64_t>& prompt, const BeamSearchOptions& options);

  /// The beams that go on, the best first: the prompt alone, until `advance` is called. None when
  /// the search is done.
  const std::vector<Beam>& running() const { return running_; }

  /// How many tokens have been generated.
  int64_t length() const { return length_; }

  /// The number of continuations that matter, of the best ones of all beams.
  int64_t candidates() const;

  /// Takes the best continuations of all beams, in any order: at least `candidates()`, or all that
  /// are possible. Those of score -inf are ignored. Returns the place, among the beams before, of
  /// the beam that each of the beams goes on from.
  std::vector<size_t> advance(std::vector<Continuation> continuations);

  /// The best finished texts, the best first: num_return_sequences or fewer.
  std::vector<BeamHypothesis> found() const;

 private:
  /// The score of a text of so many generated tokens.
  double score_of(double sum, int64_t length) const;
  bool is_done() const;
  void finish(std::vector<BeamHypothesis> texts);

  const BeamSearchOptions& options_;
  const size_t prompt_;  // its length
  int64_t length_ = 0;
  std::vector<Beam> running_;
  std::vector<BeamHypothesis> finished_;  // num_beams at most, the best first
};

}  // namespace heed::detail
