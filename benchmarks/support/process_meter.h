// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace heed::bench {

/// Seconds of a steady clock.
double wall_seconds();
/// Seconds that the calling thread has computed.
double thread_seconds();
/// Seconds that all threads of this process have computed.
double process_seconds();

/// Bytes that have left through a network interface such as "eth0", headers included. 0 for "".
int64_t bytes_on_wire(const std::string& interface);

/// Most bytes of memory that `work` holds at one time, beyond what this process held before, as the
/// system counts it. Needs Linux.
int64_t peak_of_process(const std::function<void()>& work);

}  // namespace heed::bench
