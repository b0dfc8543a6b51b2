// SPDX-License-Identifier: BSD-3-Clause
#include "support/process_meter.h"

#include <malloc.h>

#include <ctime>
#include <fstream>
#include <stdexcept>

namespace heed::bench {

namespace {

double seconds_of(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// A line such as "VmHWM:   1234 kB", in bytes.
int64_t memory(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kilobytes = 0;
    if (word == name + ":" && status >> kilobytes) return kilobytes * 1024;
  }
  throw std::runtime_error("/proc/self/status has no " + name);
}

}  // namespace

double wall_seconds() { return seconds_of(CLOCK_MONOTONIC); }
double thread_seconds() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }
double process_seconds() { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }

int64_t bytes_on_wire(const std::string& interface) {
  if (interface.empty()) return 0;
  const auto path = "/sys/class/net/" + interface + "/statistics/tx_bytes";
  int64_t bytes = 0;
  if (!(std::ifstream(path) >> bytes)) throw std::runtime_error("cannot read " + path);
  return bytes;
}

int64_t peak_of_process(const std::function<void()>& work) {
  // Large blocks go back to the system when they are freed, so that using them again is seen.
  constexpr int kLargeBlock = 1 << 16;
  ::mallopt(M_MMAP_THRESHOLD, kLargeBlock);
  ::malloc_trim(0);
  constexpr auto kResetPeak = "5";
  if (!(std::ofstream("/proc/self/clear_refs") << kResetPeak << std::flush)) {
    throw std::runtime_error("cannot write /proc/self/clear_refs");
  }
  const auto before = memory("VmRSS");
  work();
  return memory("VmHWM") - before;
}

}  // namespace heed::bench
