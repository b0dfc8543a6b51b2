// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/packed_memory.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "core/ceil_div.h"
#include "core/direct.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

// Blocks of 64 MB, each of which has several weights one after the other, because most weights are
// no multiple of a huge page. A block is freed with the last of its weights.

namespace heed::detail {

namespace {

constexpr int64_t kHugePage = int64_t{2} << 20, kBlock = int64_t{64} << 20;
constexpr int64_t kSmallest = int64_t{64} << 10;  // fewer bytes are left to LibTorch's allocator
constexpr int64_t kAlignment = 64;

class MemoryBlock {
 public:
  explicit MemoryBlock(int64_t bytes)
      : memory_(static_cast<char*>(std::aligned_alloc(kHugePage, bytes))),
        bytes_(memory_ != nullptr ? bytes : 0) {
#ifdef MADV_HUGEPAGE
    if (memory_ != nullptr) madvise(memory_, bytes, MADV_HUGEPAGE);
#endif
  }
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;
  ~MemoryBlock() { std::free(memory_); }

  /// The next bytes; null if fewer are left.
  void* take(int64_t bytes) {
    if (bytes > bytes_ - taken_) return nullptr;
    auto* place = memory_ + taken_;
    taken_ += round_up(bytes, kAlignment);
    return place;
  }

 private:
  char* memory_;
  int64_t bytes_, taken_ = 0;
};

}  // namespace

at::Tensor packed_memory(at::IntArrayRef sizes, at::ScalarType dtype) {
  static std::mutex mutex;
  static std::weak_ptr<MemoryBlock> latest;
  const auto bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
  if (bytes < kSmallest) return empty_on_cpu(sizes, dtype);
  const std::scoped_lock lock(mutex);
  auto block = latest.lock();
  auto* place = block != nullptr ? block->take(bytes) : nullptr;
  if (place == nullptr) {
    block = std::make_shared<MemoryBlock>(std::max(kBlock, round_up(bytes, kHugePage)));
    place = block->take(bytes);
    if (place == nullptr) return empty_on_cpu(sizes, dtype);  // whose error names the bytes
    latest = block;
  }
  return at::from_blob(
      place, sizes, [block](void*) {}, at::device(at::kCPU).dtype(dtype));
}

}  // namespace heed::detail
