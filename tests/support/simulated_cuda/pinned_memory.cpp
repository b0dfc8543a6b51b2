// SPDX-License-Identifier: BSD-3-Clause
#include "support/simulated_cuda/pinned_memory.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>

namespace heed::test {

namespace {

/// Pinned blocks by their first byte.
class PinnedBlocks {
 public:
  void add(const void* data, size_t bytes) {
    const std::scoped_lock lock(mutex_);
    blocks_[static_cast<const char*>(data)] = bytes;
  }
  void remove(const void* data) {
    const std::scoped_lock lock(mutex_);
    blocks_.erase(static_cast<const char*>(data));
  }
  bool hold(const void* data) const {
    const auto* const byte = static_cast<const char*>(data);
    const std::scoped_lock lock(mutex_);
    const auto after = blocks_.upper_bound(byte);
    if (after == blocks_.begin()) return false;
    const auto& [first, bytes] = *std::prev(after);
    return byte < first + bytes;
  }

 private:
  mutable std::mutex mutex_;
  std::map<const char*, size_t> blocks_;
};

PinnedBlocks& pinned_blocks() {
  static auto* const instance = new PinnedBlocks;
  return *instance;
}

void free_pinned(void* context) {
  const std::unique_ptr<c10::DataPtr> block(static_cast<c10::DataPtr*>(context));
  pinned_blocks().remove(block->get());
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::kCPU};
    auto block = std::make_unique<c10::DataPtr>(c10::GetDefaultCPUAllocator()->allocate(bytes));
    auto* const data = block->get();
    pinned_blocks().add(data, bytes);
    return {data, block.release(), &free_pinned, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override {
    std::memcpy(to, from, count);
  }
};

}  // namespace

c10::Allocator& pinned_allocator() {
  static auto* const instance = new PinnedAllocator;
  return *instance;
}

bool is_pinned(const void* data) { return pinned_blocks().hold(data); }

}  // namespace heed::test
