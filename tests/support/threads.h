// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/Parallel.h>

#include <thread>
#include <vector>

namespace heed::test {

/// Runs work(0) to work(count - 1), each on a thread of its own.
template <typename Work>
void on_threads(int count, const Work& work) {
  std::vector<std::thread> threads;
  for (int n = 0; n < count; ++n) threads.emplace_back(work, n);
  for (auto& thread : threads) thread.join();
}

/// The number of threads of LibTorch's teams, until the end of a scope.
class ThreadsGuard {
 public:
  explicit ThreadsGuard(int threads) : before_(at::get_num_threads()) {
    at::set_num_threads(threads);
  }
  ~ThreadsGuard() { at::set_num_threads(before_); }
  ThreadsGuard(const ThreadsGuard&) = delete;
  ThreadsGuard& operator=(const ThreadsGuard&) = delete;

 private:
  int before_;
};

}  // namespace heed::test
