// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace heed::examples {

/// While this object exists, Ctrl-C and SIGTERM request a stop instead of ending the program. A
/// second Ctrl-C ends it.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool asked() const;

  /// The exit status as in a shell: 128 plus the signal's number, or 0 if no stop was requested.
  int exit_status() const;
};

}  // namespace heed::examples
