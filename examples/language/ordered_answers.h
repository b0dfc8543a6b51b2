// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace heed::examples {

struct Prompt {
  size_t number;  ///< from 1
  std::string text;
};

/// Answers that grow at the same time, to be printed one after the other: each with its number and
/// its prompt, in the order of the prompts.
class OrderedAnswers {
 public:
  explicit OrderedAnswers(const std::vector<Prompt>& prompts);

  void append(size_t answer, const std::string& text, bool last);

  /// Returns what can be printed now and has not been returned before: the rest of whole answers,
  /// and whole lines of the one after them.
  std::string take_lines();

  /// Returns what is left of the answer that is being printed, and all whole ones after it.
  std::string take_rest();

 private:
  struct Answer {
    std::string text;  // that was not returned yet
    bool whole = false;
  };

  std::vector<Answer> answers_;
  size_t printed_ = 0;  // how many have been returned whole
};

}  // namespace heed::examples
