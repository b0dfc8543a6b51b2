// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace heed::bench {

using Call = std::function<void()>;
using Samples = std::vector<double>;  // seconds a call, in the order of measurement

/// Times the calls interleaved for about `seconds` in all: A B C, C B A, A B C and so on, so that
/// drift in the machine's speed meets all alike. Each sample is the mean over a batch of calls that
/// takes at least 200 us. Returns the samples of each call; those of equal index are of one round.
std::vector<Samples> time_interleaved(const std::vector<Call>& calls, double seconds);

/// Seconds a call, averaged over `count` calls, until the devices are done with them too.
double time_batch(const Call& call, int count);

double median(Samples samples);

struct Ratio {
  double value;
  double low, high;  // 95 % bootstrap interval
};

/// median(numerator) / median(denominator); the interval resamples whole rounds.
Ratio ratio_of_medians(const Samples& numerator, const Samples& denominator);

}  // namespace heed::bench
