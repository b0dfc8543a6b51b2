// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>

#include <thread>
#include <vector>

/// OpenMP's parallel regions of heed and its tests, by std::thread. ThreadSanitizer does not see
/// how the threads of libgomp wait for each other, and would report a race wherever a thread reads
/// what one before it has written. The functions are hidden, so that LibTorch keeps libgomp's.

namespace {

struct Place {
  int thread = 0, threads = 1;
};

thread_local Place place;

int threads_of_team(unsigned asked) {
  if (place.threads > 1) return 1;  // as libgomp does, unless it was told to nest teams
  return asked > 0 ? static_cast<int>(asked) : at::get_num_threads();
}

}  // namespace

#define HEED_HIDDEN extern "C" __attribute__((visibility("hidden")))

HEED_HIDDEN void GOMP_parallel(void (*work)(void*), void* data, unsigned threads, unsigned) {
  const auto outer = place;
  const int team = threads_of_team(threads);
  std::vector<std::thread> others;
  for (int thread = 1; thread < team; ++thread) {
    others.emplace_back([=] {
      place = {thread, team};
      work(data);
    });
  }
  place = {0, team};
  work(data);
  place = outer;
  for (auto& other : others) other.join();
}

HEED_HIDDEN int omp_get_num_threads() { return place.threads; }
HEED_HIDDEN int omp_get_thread_num() { return place.thread; }
