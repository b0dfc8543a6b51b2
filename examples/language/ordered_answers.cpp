// SPDX-License-Identifier: BSD-3-Clause
#include "ordered_answers.h"

#include <fmt/core.h>

#include <utility>

namespace heed::examples {

OrderedAnswers::OrderedAnswers(const std::vector<Prompt>& prompts) {
  for (const auto& [number, text] : prompts) {
    const auto* const before = answers_.empty() ? "" : "\n";
    answers_.push_back({fmt::format("{}==> {} <==\n{}", before, number, text)});
  }
}

void OrderedAnswers::append(size_t answer, const std::string& text, bool last) {
  auto& own = answers_[answer];
  own.text += text;
  if (last) own.text += '\n';
  own.whole = last;
}

std::string OrderedAnswers::take_lines() {
  std::string lines;
  for (; printed_ < answers_.size() && answers_[printed_].whole; ++printed_) {
    lines += std::exchange(answers_[printed_].text, "");
  }
  if (printed_ < answers_.size()) {
    auto& growing = answers_[printed_].text;
    const auto end = growing.rfind('\n') + 1;
    lines += growing.substr(0, end);
    growing.erase(0, end);
  }
  return lines;
}

std::string OrderedAnswers::take_rest() {
  auto rest = take_lines();
  if (printed_ < answers_.size()) rest += answers_[printed_++].text + '\n';
  for (; printed_ < answers_.size(); ++printed_) {
    if (answers_[printed_].whole) rest += answers_[printed_].text;
  }
  return rest;
}

}  // namespace heed::examples
