#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "cpu/block/layout.h"

namespace heed::detail {

/// For each block of queries, the block of keys that is the next to add to its gradients. Tasks of
/// several threads wait for each other, so one that throws must let the others go.
class GradientTurns {
 public:
  explicit GradientTurns(const BlockLayout& layout)
      : layout_(layout), next_(static_cast<size_t>(layout.blocks())) {
    for (int64_t n = 0; n < layout.blocks(); ++n) next_[static_cast<size_t>(n)] = seen_from(n, 0);
  }

  /// Runs a task that takes its turns; if it throws, nobody waits any more.
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
  /// Returns true when it is the key block's turn, and false if a task has thrown: its turns would
  /// never be passed on.
  bool wait(int64_t block, int64_t key_block) const {
    // A task that is waited for was taken before, and waits only for earlier ones.
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

 private:
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
  std::atomic<bool> is_over_{false};
};

}  // namespace heed::detail
