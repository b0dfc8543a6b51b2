// SPDX-License-Identifier: BSD-3-Clause
#include "stop_strings.h"

#include <algorithm>
#include <utility>

namespace heed::examples {

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  const auto is_empty = [](const std::string& stop) { return stop.empty(); };
  stops_.erase(std::remove_if(stops_.begin(), stops_.end(), is_empty), stops_.end());
}

std::string StopStrings::push(std::string_view piece) {
  if (found_) return "";
  held_ += piece;
  auto first_end = std::string::npos, begin = std::string::npos;
  for (const auto& stop : stops_) {
    const auto found = held_.find(stop);
    if (found == std::string::npos) continue;
    const auto end = found + stop.size();
    if (first_end != std::string::npos && std::pair(end, found) > std::pair(first_end, begin)) {
      continue;
    }
    first_end = end;
    begin = found;
  }
  found_ = first_end != std::string::npos;
  auto text = held_.substr(0, found_ ? begin : held_.size() - held_back());
  held_.erase(0, found_ ? held_.size() : text.size());
  return text;
}

/// The length of the longest end of the text that begins one of the strings.
size_t StopStrings::held_back() const {
  size_t longest = 0;
  for (const auto& stop : stops_) {
    auto length = std::min(stop.size() - 1, held_.size());
    while (length > longest && held_.compare(held_.size() - length, length, stop, 0, length) != 0) {
      --length;
    }
    longest = std::max(longest, length);
  }
  return longest;
}

std::string StopStrings::finish() { return std::exchange(held_, ""); }

}  // namespace heed::examples
