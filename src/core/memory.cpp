// SPDX-License-Identifier: BSD-3-Clause
#include <heed/memory.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace heed {

#ifdef __GLIBC__

namespace {

/// Takes the memory of tensors from malloc. LibTorch's allocator calls posix_memalign, which looks
/// for a block that is larger than the one it then returns. So after a block is freed, another one
/// of the same size does not fit into its place, unless its neighbors are free too, and the heap
/// grows.
class ReusedMemory final : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    auto* data = bytes == 0 ? nullptr : aligned(bytes);
    return {data, data, &release, at::Device(at::kCPU)};
  }

  at::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr size_t kAlignment = 64;  // that of LibTorch's allocator

  /// The address of the block of malloc stands before the memory.
  static void* aligned(size_t bytes) {
    constexpr auto kMore = kAlignment + sizeof(void*);
    auto* block = bytes > SIZE_MAX - kMore ? nullptr : std::malloc(bytes + kMore);
    if (block == nullptr) c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
    // LibTorch's words: programs look for them to tell this error from others.
    TORCH_CHECK(block != nullptr,
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes,
                " bytes.");
    auto* data = round_up(static_cast<char*>(block) + sizeof(void*), kAlignment);
    std::memcpy(data - sizeof(void*), static_cast<const void*>(&block), sizeof(void*));
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return data;
  }

  static void release(void* data) {
    if (data == nullptr) return;
    c10::profiledCPUMemoryReporter().Delete(data);
    void* block = nullptr;
    std::memcpy(static_cast<void*>(&block), static_cast<char*>(data) - sizeof(void*),
                sizeof(void*));
    std::free(block);
  }

  static char* round_up(char* address, size_t multiple) {
    const auto number = reinterpret_cast<uintptr_t>(address);
    return address + (multiple - number % multiple) % multiple;
  }
};

}  // namespace

bool reuse_memory(bool on) {
  constexpr int kMappedBlocks = 65536;  // glibc's default
  constexpr int kMegabyte = 1 << 20;
  static auto& memory = *new ReusedMemory;  // tensors may outlive static objects
  // Some versions of glibc take no M_MMAP_THRESHOLD above 32 MB; M_MMAP_MAX = 0 has no such limit.
  if (on) {
    const bool is_set = mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1;
    const bool is_default = c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator();
    if (is_set && is_default) c10::SetCPUAllocator(&memory);
    return is_set;
  }
  const bool is_set = mallopt(M_MMAP_MAX, kMappedBlocks) == 1 &&
                      mallopt(M_MMAP_THRESHOLD, 32 * kMegabyte) == 1 &&
                      mallopt(M_TRIM_THRESHOLD, 64 * kMegabyte) == 1;
  if (c10::GetCPUAllocator() == &memory) c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
  malloc_trim(0);
  return is_set;
}

#else

bool reuse_memory(bool /*on*/) { return false; }

#endif

}  // namespace heed
