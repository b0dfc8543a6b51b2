// SPDX-License-Identifier: BSD-3-Clause
#include "support/timing.h"

#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

namespace heed::bench {

namespace {

constexpr double kMinSampleSeconds = 200e-6;
constexpr double kWarmUpSeconds = 0.02;
constexpr int kMinWarmUpCalls = 3;
constexpr size_t kMinRounds = 9;
constexpr size_t kMaxRounds = 400;

/// A call for CUDA returns once its work is queued.
void wait_for_devices() {
  static const bool has_cuda = torch::cuda::is_available();
  if (has_cuda) torch::cuda::synchronize();
}

/// Runs `call` until the caches, the allocator and the thread pool have settled, and returns its
/// fastest time.
double warm_up(const Call& call) {
  double fastest = time_batch(call, 1);
  double spent = fastest;
  for (int calls = 1; calls < kMinWarmUpCalls || spent < kWarmUpSeconds; ++calls) {
    const auto seconds = time_batch(call, 1);
    fastest = std::min(fastest, seconds);
    spent += seconds;
  }
  return fastest;
}

}  // namespace

double time_batch(const Call& call, int count) {
  using Clock = std::chrono::steady_clock;
  wait_for_devices();
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) call();
  wait_for_devices();
  return std::chrono::duration<double>(Clock::now() - start).count() / count;
}

std::vector<Samples> time_interleaved(const std::vector<Call>& calls, double seconds) {
  std::vector<int> batches;
  double round_seconds = 0.0;
  for (const auto& call : calls) {
    const auto call_seconds = warm_up(call);
    batches.push_back(std::max(1, static_cast<int>(std::ceil(kMinSampleSeconds / call_seconds))));
    round_seconds += batches.back() * call_seconds;
  }
  const auto rounds =
      std::clamp(static_cast<size_t>(seconds / round_seconds), kMinRounds, kMaxRounds);

  std::vector<Samples> samples(calls.size());
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto turn = round % 2 == 0 ? i : calls.size() - 1 - i;
      samples[turn].push_back(time_batch(calls[turn], batches[turn]));
    }
  }
  return samples;
}

double median(Samples samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  if (samples.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(samples.begin(), middle)) / 2;
}

Ratio ratio_of_medians(const Samples& numerator, const Samples& denominator) {
  constexpr size_t kResamples = 1000;
  const auto rounds = numerator.size();
  std::mt19937 generator;  // default seed: the same samples give the same interval
  std::uniform_int_distribution<size_t> any_round(0, rounds - 1);
  Samples ratios(kResamples);
  for (auto& ratio : ratios) {
    Samples above, below;
    for (size_t i = 0; i < rounds; ++i) {
      const auto round = any_round(generator);
      above.push_back(numerator[round]);
      below.push_back(denominator[round]);
    }
    ratio = median(std::move(above)) / median(std::move(below));
  }
  std::sort(ratios.begin(), ratios.end());
  return {median(numerator) / median(denominator), ratios[kResamples / 40],
          ratios[kResamples - 1 - kResamples / 40]};
}

}  // namespace heed::bench
