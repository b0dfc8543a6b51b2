// SPDX-License-Identifier: BSD-3-Clause
#include "support/failing_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <limits>
#include <new>

namespace heed::test {

namespace {

constexpr auto kPlenty = std::numeric_limits<int64_t>::max();
constexpr auto kAnySize = std::numeric_limits<size_t>::max();

thread_local int64_t left = kPlenty;  // allocations; below 0: how often there was none
thread_local bool once = false;       // whether only one allocation fails
thread_local size_t most = kAnySize, largest = 0;

void take(size_t bytes) {
  if (bytes > largest) largest = bytes;
  const bool fails = left != kPlenty && --left < 0 && !(once && left < -1);
  if (bytes > most || fails) throw std::bad_alloc();
}

class LimitedAllocator final : public c10::Allocator {
 public:
  explicit LimitedAllocator(c10::Allocator& memory) : memory_(memory) {}

  at::DataPtr allocate(size_t bytes) override {
    take(bytes);
    return memory_.allocate(bytes);
  }
  at::DeleterFnPtr raw_deleter() const override { return memory_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    memory_.copy_data(to, from, bytes);
  }

 private:
  c10::Allocator& memory_;
};

/// For tensors, once.
void limit_tensors() {
  static LimitedAllocator allocator(*c10::GetCPUAllocator());
  static const bool installed = [] {
    c10::SetCPUAllocator(&allocator, /*priority=*/2);
    return true;
  }();
  static_cast<void>(installed);
}

}  // namespace

FailingMemory::FailingMemory(int64_t allocations) {
  limit_tensors();
  left = allocations;
}

FailingMemory::~FailingMemory() { left = kPlenty; }

FailingAllocation::FailingAllocation(int64_t before) {
  limit_tensors();
  left = before;
  once = true;
}

FailingAllocation::~FailingAllocation() {
  left = kPlenty;
  once = false;
}

bool FailingAllocation::has_failed() const { return left < 0; }

SmallMemory::SmallMemory(size_t most_bytes) {
  limit_tensors();
  most = most_bytes;
  largest = 0;
}

SmallMemory::~SmallMemory() { most = kAnySize; }

size_t SmallMemory::asked() const { return largest; }

}  // namespace heed::test

void* operator new(size_t bytes) {
  heed::test::take(bytes);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t /*bytes*/) noexcept { std::free(memory); }
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](size_t bytes, const std::nothrow_t& tag) noexcept {
  return operator new(bytes, tag);
}
void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t& /*tag*/) noexcept { std::free(memory); }

/// LeakSanitizer asks this: LibTorch's reader of zip archives keeps its tables where its
/// constructor runs out of memory.
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" const char* __lsan_default_suppressions() { return "leak:mz_zip_reader_\n"; }
