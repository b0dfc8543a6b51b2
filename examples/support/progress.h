// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace heed::examples {

/// Shows the progress of a long task on stdout or stderr. On a terminal, this is a bar with the
/// remaining time, redrawn in place; elsewhere (a pipe, a file, TERM=dumb), it is one line for each
/// milestone.
class Progress {
 public:
  /// A task of `total_steps`, `done` of which an earlier run has done that is now continued.
  explicit Progress(int64_t total_steps, int64_t done = 0, std::FILE* stream = stdout);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Counts more steps. `status`, such as "loss 0.12", is shown beside the bar.
  void advance(const std::string& status, int64_t steps = 1);

  /// Marks a point of the task that deserves a line in a log.
  void milestone(const std::string& status);

  /// Removes the bar, so that the terminal has room for other output, until the next step.
  void hide();

  double seconds() const;

 private:
  void draw(const std::string& status);

  const int64_t total_steps_;
  std::FILE* const stream_;
  const bool on_terminal_;
  const std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_drawn_;
  bool shown_ = false;
  const int64_t steps_before_;
  int64_t steps_;
};

}  // namespace heed::examples
