// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace heed::examples {

/// Ends a text before the first of some strings in it, for text that is shown while it is made. It
/// holds back what may be the beginning of such a string. The text is the same in whatever pieces
/// it comes: of several strings, the one counts that is complete first, and of those the longest.
class StopStrings {
 public:
  /// With none, or only empty ones, all text passes.
  explicit StopStrings(std::vector<std::string> stops = {});

  /// Returns what the piece adds to the text; nothing once a string has come.
  std::string push(std::string_view piece);
  /// Returns what was held back, at the end of the text.
  std::string finish();
  /// Whether one of the strings has come.
  bool found() const { return found_; }

 private:
  size_t held_back() const;

  std::vector<std::string> stops_;
  std::string held_;  // the end of the text, if a string may begin there
  bool found_ = false;
};

}  // namespace heed::examples
