#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace heed::examples {

/// Shows on stdout how far a long task is: on a terminal a bar with the time left, redrawn in
/// place; elsewhere (a pipe, a file, TERM=dumb) plain lines, one each milestone.
class Progress {
 public:
  /// Of `total_steps`, `done` were done before, by a run that is gone on with.
  explicit Progress(int64_t total_steps, int64_t done = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One more step is done; `status`, such as "loss 0.12", stands beside the bar.
  void advance(const std::string& status);

  /// The task reached a point worth a line in a log.
  void milestone(const std::string& status);

  double seconds() const;

 private:
  void draw(const std::string& status) const;

  const int64_t total_steps_;
  const bool on_terminal_;
  const std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_drawn_;
  const int64_t steps_before_;
  int64_t steps_;
};

}  // namespace heed::examples
