// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <heed/memory.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/lack_of_memory.h"

namespace heed::test {
namespace {

/// Whether the C library has the settings; AddressSanitizer's allocator has none.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
constexpr bool kHasSettings = true;
#else
constexpr bool kHasSettings = false;
#endif

constexpr int64_t kBlockBytes = int64_t{64} << 20;

void use_block() { at::empty({kBlockBytes}, at::kByte).fill_(1); }

/// The pages that the kernel clears while a block is used and freed three times.
int64_t cleared_pages() {
  const auto faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<int64_t>(usage.ru_minflt);
  };
  use_block();
  const auto before = faults();
  for (int i = 0; i < 3; ++i) use_block();
  return faults() - before;
}

/// The bytes of the process that are in memory.
int64_t resident_bytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * 4096;  // a page is at least as large
}

TEST(ReuseMemory, SaysWhetherTheLibraryTakesIt) {
  for (const bool on : {true, true, false, false, true, false}) {
    EXPECT_EQ(reuse_memory(on), kHasSettings) << on;
  }
}

TEST(ReuseMemory, LetsFreedBlocksBeUsedAgain) {
  if (!kHasSettings) GTEST_SKIP() << "the C library has no such settings";
  ASSERT_TRUE(reuse_memory());
  constexpr int64_t kPages = kBlockBytes / 4096;
  // LibTorch's allocator would not fit a block into the place of the one before.
  EXPECT_LT(cleared_pages(), kPages / 8);
  const auto before = resident_bytes();
  ASSERT_TRUE(reuse_memory(false));
  EXPECT_LT(resident_bytes(), before - kBlockBytes / 2);
}

/// Tensors of both allocators live on after the call that changes it.
TEST(ReuseMemory, GivesTensorsAlignedMemory) {
  std::vector<at::Tensor> tensors;
  for (const bool on : {true, false, true}) {
    reuse_memory(on);
    for (const int64_t bytes : {0, 1, 63, 64, 65, 4097, 1 << 20}) {
      tensors.push_back(at::empty({bytes}, at::kByte).fill_(7));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensors.back().const_data_ptr()) % 64, 0) << bytes;
    }
  }
  reuse_memory(false);
  for (const auto& tensor : tensors) {
    EXPECT_TRUE(tensor.eq(7).all().item<bool>());
    auto larger = tensor.clone();
    EXPECT_EQ(larger.resize_({2 * tensor.numel()})
                  .narrow(0, 0, tensor.numel())
                  .ne(7)
                  .sum()
                  .item<int64_t>(),
              0);
  }
}

TEST(ReuseMemory, RefusesWhatDoesNotFit) {
  if (!kHasSettings) GTEST_SKIP() << "AddressSanitizer ends the process";
  std::vector<std::string> errors;
  for (const bool on : {false, true}) {
    reuse_memory(on);
    try {
      at::empty({int64_t{1} << 60}, at::kByte);
    } catch (const c10::Error& error) {
      EXPECT_TRUE(detail::is_lack_of_memory(error)) << on;
      errors.emplace_back(error.what_without_backtrace());
    }
  }
  reuse_memory(false);
  ASSERT_EQ(errors.size(), 2);
  // LibTorch's error, after a place in its source, and before the number of the system's error.
  const auto begin = errors[0].find("DefaultCPUAllocator");
  const auto size = errors[1].size();
  EXPECT_EQ(errors[0].substr(std::min(begin, errors[0].size()), size), errors[1]);
}

TEST(LackOfMemory, IsToldFromOtherErrors) {
  EXPECT_TRUE(detail::is_lack_of_memory(std::bad_alloc()));
  EXPECT_FALSE(detail::is_lack_of_memory(std::runtime_error("no such file")));
  const auto is_told = [](const auto& call) {
    try {
      call();
    } catch (const c10::Error& error) {
      return detail::is_lack_of_memory(error);
    }
    ADD_FAILURE() << "it must throw";
    return false;
  };
  EXPECT_TRUE(is_told([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory"); }));
  EXPECT_FALSE(is_told([] { TORCH_CHECK_VALUE(false, "header size (9) must be below 8"); }));
}

/// LibTorch's allocator, by another address.
class OwnAllocator final : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }
  at::DeleterFnPtr raw_deleter() const override {
    return c10::GetDefaultCPUAllocator()->raw_deleter();
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

TEST(ReuseMemory, LeavesAnAllocatorThatTheProgramHasSet) {
  static OwnAllocator own;
  c10::SetCPUAllocator(&own);
  for (const bool on : {true, false}) {
    EXPECT_EQ(reuse_memory(on), kHasSettings);
    EXPECT_EQ(c10::GetCPUAllocator(), &own) << on;
  }
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
}

}  // namespace
}  // namespace heed::test
