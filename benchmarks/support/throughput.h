// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>

namespace heed::bench {

/// Returns the work a second of `step`, which returns how much it did, over about half a second.
template <typename Step>
double throughput(const Step& step) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  double work = 0.0;
  std::chrono::duration<double> seconds{0};
  while (seconds.count() < 0.5) {
    work += static_cast<double>(step());
    seconds = Clock::now() - start;
  }
  return work / seconds.count();
}

}  // namespace heed::bench
