// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

namespace heed::test {

/// Fills what it gives with the bytes 0xFF, which are NaN in every floating dtype: what reads
/// memory that nobody wrote shows.
class PoisoningAllocator final : public c10::Allocator {
 public:
  explicit PoisoningAllocator(c10::Allocator& memory) : memory_(memory) {}

  at::DataPtr allocate(size_t bytes) override {
    auto data = memory_.allocate(bytes);
    if (bytes > 0) std::memset(data.get(), 0xFF, bytes);
    return data;
  }
  at::DeleterFnPtr raw_deleter() const override { return memory_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    memory_.copy_data(to, from, bytes);
  }

 private:
  c10::Allocator& memory_;
};

/// From now on, memory of tensors on the CPU is poisoned when it is made.
inline void poison_memory() {
  static PoisoningAllocator allocator(*c10::GetCPUAllocator());
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

}  // namespace heed::test
