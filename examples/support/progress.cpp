// SPDX-License-Identifier: BSD-3-Clause
#include "progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace heed::examples {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kBetweenDraws = std::chrono::milliseconds(50);

bool is_terminal(std::FILE* stream) {
  const char* terminal = std::getenv("TERM");
  return isatty(fileno(stream)) == 1 && terminal != nullptr && std::string(terminal) != "dumb";
}

size_t terminal_width(std::FILE* stream) {
  winsize size{};
  const bool known = ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

/// As "1:05".
std::string minutes_and_seconds(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string bar(double done, size_t width) {
  const auto filled = static_cast<size_t>(done * static_cast<double>(width));
  std::string cells(filled, '=');
  if (filled < width) cells += '>';
  cells.resize(width, ' ');
  return '[' + cells + ']';
}

}  // namespace

Progress::Progress(int64_t total_steps, int64_t done, std::FILE* stream)
    : total_steps_(total_steps),
      stream_(stream),
      on_terminal_(is_terminal(stream)),
      start_(Clock::now()),
      steps_before_(done),
      steps_(done) {}

Progress::~Progress() {
  if (shown_) std::fputs("\n", stream_);
}

void Progress::advance(const std::string& status, int64_t steps) {
  steps_ += steps;
  if (on_terminal_ && Clock::now() - last_drawn_ >= kBetweenDraws) {
    draw(status);
    last_drawn_ = Clock::now();
  }
}

void Progress::milestone(const std::string& status) {
  if (on_terminal_) {
    draw(status);
  } else {
    std::fprintf(stream_, "%s\n", status.c_str());
    std::fflush(stream_);
  }
}

void Progress::hide() {
  if (!shown_) return;
  std::fputs("\r\x1b[K", stream_);
  std::fflush(stream_);
  shown_ = false;
  last_drawn_ = {};
}

double Progress::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void Progress::draw(const std::string& status) {
  const double done = static_cast<double>(steps_) / static_cast<double>(total_steps_);
  const auto steps_here = static_cast<double>(steps_ - steps_before_);
  const double left =
      steps_here > 0 ? seconds() / steps_here * static_cast<double>(total_steps_ - steps_) : 0;
  const auto text = fmt::format("{:4} %  {}  {} left", static_cast<int>(100 * done), status,
                                minutes_and_seconds(left));
  // The last column stays free: a terminal would wrap the line, and "\r" not return to its start.
  const size_t columns = terminal_width(stream_) - 1;
  const size_t brackets = 2;
  const size_t room = columns > text.size() + brackets ? columns - text.size() - brackets : 0;
  const auto line = (room > 0 ? bar(done, std::min<size_t>(room, 30)) : "") + text;
  std::fprintf(stream_, "\r%s\x1b[K", line.substr(0, columns).c_str());
  std::fflush(stream_);
  shown_ = true;
}

}  // namespace heed::examples
