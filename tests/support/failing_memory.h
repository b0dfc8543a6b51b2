// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>

namespace heed::test {

/// While it lives, this thread is given memory so many times, of operator new and for tensors on
/// the CPU, and then never again: std::bad_alloc. A program that uses it is built with
/// failing_memory.cpp, which replaces operator new.
class FailingMemory {
 public:
  explicit FailingMemory(int64_t allocations);
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;
  ~FailingMemory();
};

/// While it lives, one allocation of this thread fails, the one after so many others, likewise: the
/// error that follows has all its words.
class FailingAllocation {
 public:
  explicit FailingAllocation(int64_t before);
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;
  ~FailingAllocation();

  bool has_failed() const;
};

/// Whether `call` threw, given memory so many times. What it threw may lack words.
template <typename Call>
bool runs_out_of_memory(int64_t allocations, const Call& call) {
  const FailingMemory memory(allocations);
  try {
    call();
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

/// While it lives, this thread is given no more than `most` bytes at once, likewise.
class SmallMemory {
 public:
  explicit SmallMemory(size_t most);
  SmallMemory(const SmallMemory&) = delete;
  SmallMemory& operator=(const SmallMemory&) = delete;
  ~SmallMemory();

  /// The most bytes that were asked for at once.
  size_t asked() const;
};

}  // namespace heed::test
