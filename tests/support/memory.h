// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <mutex>

namespace heed::test {

/// Counts the bytes that the calling thread, and attention's workers for it, allocate for tensors,
/// while it lives.
class AllocationCounter {
 public:
  /// Allocated and not yet freed.
  int64_t live() const { return counts_->live; }
  int64_t peak() const { return counts_->peak; }

 private:
  struct Counts : public c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*ptr*/, int64_t alloc_size, size_t /*total_allocated*/,
                           size_t /*total_reserved*/, c10::Device /*device*/) override {
      const std::scoped_lock lock(mutex);
      live += alloc_size;
      peak = live > peak ? live : peak;
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::mutex mutex;
    int64_t live = 0;
    int64_t peak = 0;
  };

  std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counts_};
};

}  // namespace heed::test
