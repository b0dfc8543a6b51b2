// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/Parallel.h>

#include <cstdlib>

namespace heed::examples {

/// Trains with one thread, unless the variable OMP_NUM_THREADS is set. For a small model this is
/// faster: a step of a few milliseconds wakes the other threads a hundred times. Threads also spin
/// while they wait for each other, so a second thread that waits for a core which another program
/// has makes training ten times slower.
inline void use_one_thread() {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) at::set_num_threads(1);
}

}  // namespace heed::examples
