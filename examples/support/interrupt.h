#pragma once

namespace heed::examples {

/// While one exists, Ctrl-C and SIGTERM ask the program to stop instead of ending it; a second
/// Ctrl-C ends it.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool asked() const;

  /// As a shell counts it: 128 and the signal's number, 0 where nobody asked.
  int exit_status() const;
};

}  // namespace heed::examples
