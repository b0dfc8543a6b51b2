// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/Parallel.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

/// Parallel loops over tasks of different cost:
///
///   on each of min(count, threads) threads:
///     while the queue has a next task: run it
///
/// The queue is one atomic counter, so a thread that is done with a short task takes the next one.

namespace heed::detail {

/// Distributes the numbers 0 .. count - 1 to workers; a worker takes the next number when it is
/// done with the last one.
class TaskQueue {
 public:
  explicit TaskQueue(int64_t count) : count_(count) {}
  bool next(int64_t& task) {
    task = next_.fetch_add(1, std::memory_order_relaxed);
    return task < count_;
  }

 private:
  const int64_t count_;
  std::atomic<int64_t> next_{0};
};

/// This many multiply-adds take about 5 us, as long as it takes to wake a thread.
constexpr int64_t kWorthAThread = 250'000;

/// The number of threads, at most `threads`, that are worth waking for so many multiply-adds.
inline int64_t useful_threads(double multiply_adds, int64_t threads = at::get_num_threads()) {
  return std::min(threads, static_cast<int64_t>(multiply_adds / kWorthAThread) + 1);
}

/// Runs `work(queue)` on `threads` threads, or on `count` if there are fewer tasks. The queue has
/// `count` tasks.
template <typename Work>
void run_tasks(int64_t count, int64_t threads, const Work& work) {
  TaskQueue queue(count);
  const auto workers = std::min(count, threads);
  const auto profiler = c10::ThreadLocalDebugInfo::current();
  at::parallel_for(0, workers, 1, [&](int64_t, int64_t) {
    const c10::DebugInfoGuard guard(profiler);  // the profiler sees workers' memory too
    work(queue);
  });
}

}  // namespace heed::detail
