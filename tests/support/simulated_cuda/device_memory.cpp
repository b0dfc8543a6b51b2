// SPDX-License-Identifier: BSD-3-Clause
#include "support/simulated_cuda/device_memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

namespace heed::test {

namespace {

constexpr size_t kSize = size_t{1} << 36;      // of addresses; pages exist once they are written to
constexpr size_t kAlignment = 512;             // of the caching allocator's blocks
constexpr size_t kReturned = size_t{1} << 20;  // blocks of this size go back to the system

/// Places in the arena, with free ones beside each other joined.
class Places {
 public:
  size_t take(size_t size) {
    const auto found = std::find_if(free_.begin(), free_.end(),
                                    [&](const auto& place) { return place.second >= size; });
    TORCH_CHECK(found != free_.end(), "simulated CUDA: out of memory");
    const auto [offset, room] = *found;
    free_.erase(found);
    if (room > size) free_.emplace(offset + size, room - size);
    return offset;
  }

  void give_back(size_t offset, size_t size) {
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && next->first == offset + size) {
      size += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += size;
        return;
      }
    }
    free_.emplace(offset, size);
  }

 private:
  std::map<size_t, size_t> free_ = {{0, kSize}};
};

struct Block {
  void* device;
  size_t bytes;
  int64_t count;  // how often peaks had been counted anew when it was taken
};

class Arena {
 public:
  Arena() : file_(::memfd_create("simulated_cuda", MFD_CLOEXEC)) {
    TORCH_CHECK(file_ >= 0 && ::ftruncate(file_, static_cast<off_t>(kSize)) == 0,
                "simulated CUDA: cannot reserve memory");
    host_ = map(PROT_READ | PROT_WRITE);
    device_ = map(PROT_NONE);
  }

  Block take(size_t bytes) {
    const std::scoped_lock lock(mutex_);
    const auto size = rounded(bytes);
    const auto offset = places_.take(size);
    taken_ += static_cast<int64_t>(size);
    counted_ += static_cast<int64_t>(size);
    peak_ = std::max(peak_, counted_);
    std::memset(host_ + offset, 0xff, size);  // NaN in every floating dtype
    if (watches_) new_blocks_[device_ + offset] = size;
    return {device_ + offset, bytes, count_};
  }

  void give_back(const Block& block) {
    const std::scoped_lock lock(mutex_);
    const auto size = rounded(block.bytes);
    const auto offset = static_cast<size_t>(static_cast<char*>(block.device) - device_);
    if (size >= kReturned) {
      ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(size));
    }
    places_.give_back(offset, size);
    new_blocks_.erase(block.device);
    taken_ -= static_cast<int64_t>(size);
    if (block.count == count_) counted_ -= static_cast<int64_t>(size);
  }

  void* host_view(const void* device) const {
    const auto offset = static_cast<const char*>(device) - device_;
    TORCH_CHECK(offset >= 0 && static_cast<size_t>(offset) < kSize,
                "simulated CUDA: a tensor of the device has memory of the host");
    return host_ + offset;
  }

  int64_t taken() const {
    const std::scoped_lock lock(mutex_);
    return taken_;
  }
  int64_t peak() const {
    const std::scoped_lock lock(mutex_);
    return peak_;
  }
  void count_peak_anew() {
    const std::scoped_lock lock(mutex_);
    counted_ = peak_ = 0;
    ++count_;
  }
  void watch(bool watches) {
    const std::scoped_lock lock(mutex_);
    watches_ = watches;
    new_blocks_.clear();
  }
  std::map<void*, size_t> new_blocks() const {
    const std::scoped_lock lock(mutex_);
    return new_blocks_;
  }

 private:
  static size_t rounded(size_t bytes) {
    return (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  }

  char* map(int protection) const {
    auto* address = ::mmap(nullptr, kSize, protection, MAP_SHARED | MAP_NORESERVE, file_, 0);
    TORCH_CHECK(address != MAP_FAILED, "simulated CUDA: cannot map memory");
    return static_cast<char*>(address);
  }

  int file_;
  char *host_, *device_;
  mutable std::mutex mutex_;
  Places places_;
  int64_t taken_ = 0;
  int64_t counted_ = 0, peak_ = 0, count_ = 0;
  bool watches_ = false;
  std::map<void*, size_t> new_blocks_;
};

/// Never destroyed: tensors may outlive everything else.
Arena& arena() {
  static auto* const instance = new Arena;
  return *instance;
}

/// As the caching allocator does.
void report(void* device, int64_t bytes) {
  const auto taken = static_cast<size_t>(arena().taken());
  c10::reportMemoryUsageToProfiler(device, bytes, taken, taken, kDevice);
}

void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  arena().give_back(*block);
  report(block->device, -static_cast<int64_t>(block->bytes));
}

}  // namespace

c10::DataPtr allocate_on_device(size_t bytes) {
  if (bytes == 0) return {nullptr, kDevice};
  auto block = std::make_unique<Block>(arena().take(bytes));
  auto* const device = block->device;
  report(device, static_cast<int64_t>(bytes));
  return {device, block.release(), &free_block, kDevice};
}

void* host_view(const void* device) {
  return device == nullptr ? nullptr : arena().host_view(device);
}

int64_t peak_of_counted_bytes() { return arena().peak(); }
void count_peak_anew() { arena().count_peak_anew(); }
void watch_new_blocks() { arena().watch(true); }
std::map<void*, size_t> new_blocks() { return arena().new_blocks(); }
void forget_new_blocks() { arena().watch(false); }

}  // namespace heed::test
