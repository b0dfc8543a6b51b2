// SPDX-License-Identifier: BSD-3-Clause
#include "interrupt.h"

#include <csignal>

namespace heed::examples {

namespace {

volatile std::sig_atomic_t caught = 0;

void restore() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

void note(int signal) {
  caught = signal;
  // Not at SIGTERM, which some programs send twice.
  if (signal == SIGINT) restore();
}

}  // namespace

Interrupt::Interrupt() {
  caught = 0;
  std::signal(SIGINT, note);
  std::signal(SIGTERM, note);
}

Interrupt::~Interrupt() { restore(); }

bool Interrupt::asked() const { return caught != 0; }

int Interrupt::exit_status() const { return asked() ? 128 + caught : 0; }

}  // namespace heed::examples
