// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "cpu/block/layout.h"

/// The order in which blocks of keys add to dQ, so that its sums are the same with any number of
/// threads:
///
///   task of key block k: for each block of queries n that sees k, from the last to the first:
///     compute the tile
///     wait until next[n] = k;  dQ[n] += gradients K;  next[n] = the next key block that n sees
///
///   time ->        1    2    3    4
///   key block 0    q3   q2   q1   q0       All tasks take the blocks of queries in the same
///   key block 1         q3   q2   q1       order, so each task follows the one before it.
///   key block 2              q3   q2
///
/// What a task sums for all queries, DistanceGradients, it adds when it is done, in the order of
/// the tasks. Threads wait by yielding in a loop. docs/kernels.md, Block ("Memory").

namespace heed::detail {

/// For each block of queries, the block of keys that is the next to add to its gradients. Tasks of
/// several threads wait for each other, so a task that throws must release the others.
class GradientTurns {
 public:
  explicit GradientTurns(const BlockLayout& layout)
      : layout_(layout), next_(static_cast<size_t>(layout.blocks())) {
    for (int64_t n = 0; n < layout.blocks(); ++n) next_[static_cast<size_t>(n)] = seen_from(n, 0);
  }

  /// Runs a task that takes its turns. If it throws, no task waits any more.
  template <typename Task>
  void run(const Task& task) {
    if (is_over_.load(std::memory_order_relaxed)) return;
    try {
      task();
    } catch (...) {
      is_over_.store(true, std::memory_order_relaxed);
      throw;
    }
  }
  /// Waits for the turn of `key_block` to add to `block` and returns true. Returns false if a task
  /// has thrown, because its turns are never passed on.
  bool wait(int64_t block, int64_t key_block) const {
    // The wait ends: the task that is waited for was taken earlier, and waits only for earlier
    // ones.
    while (next_[static_cast<size_t>(block)].load(std::memory_order_acquire) != key_block) {
      if (is_over_.load(std::memory_order_relaxed)) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void pass_on(int64_t block, int64_t key_block) {
    next_[static_cast<size_t>(block)].store(seen_from(block, key_block + 1),
                                            std::memory_order_release);
  }
  /// Waits until all tasks before this one have passed on their turn, and returns true; false if a
  /// task has thrown.
  bool wait_for_task(int64_t task) const {
    while (next_task_.load(std::memory_order_acquire) != task) {
      if (is_over_.load(std::memory_order_relaxed)) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void pass_on_task(int64_t task) { next_task_.store(task + 1, std::memory_order_release); }

 private:
  /// The first block of keys from `key_block` on of which block n of queries may see a key.
  int64_t seen_from(int64_t n, int64_t key_block) const {
    const auto block = layout_.block(n);
    const auto first = layout_.keys(block).first / layout_.block_keys();
    key_block = std::max(key_block, first);
    while (key_block < layout_.key_blocks() &&
           !layout_.may_see(block, layout_.key_block(key_block))) {
      ++key_block;
    }
    return key_block;
  }

  const BlockLayout& layout_;
  std::vector<std::atomic<int64_t>> next_;
  std::atomic<int64_t> next_task_{0};
  std::atomic<bool> is_over_{false};
};

}  // namespace heed::detail
