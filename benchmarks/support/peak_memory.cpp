// SPDX-License-Identifier: BSD-3-Clause
#include "support/peak_memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>
#include <mutex>

namespace heed::bench {

namespace {

/// LibTorch's allocators report to whatever stands in the profiler's place.
class MemoryWatch : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*ptr*/, int64_t alloc_size, size_t /*total_allocated*/,
                         size_t /*total_reserved*/, c10::Device device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& memory = device.is_cpu() ? host_ : device_;
    memory.held += alloc_size;  // negative when memory is given back
    memory.peak = std::max(memory.peak, memory.held);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return device_.peak > 0 ? device_.peak : host_.peak; }

 private:
  struct Memory {
    int64_t held = 0, peak = 0;
  };

  std::mutex mutex_;
  Memory host_, device_;
};

}  // namespace

int64_t peak_memory(const std::function<void()>& work) {
  const auto watch = std::make_shared<MemoryWatch>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, watch);
  work();
  return watch->peak();
}

}  // namespace heed::bench
