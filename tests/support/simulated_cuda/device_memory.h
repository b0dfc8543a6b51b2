// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <map>

/// The memory of the simulated device. It is mapped twice: where tensors say that it is, nobody may
/// touch it; operators find the same bytes elsewhere.

namespace heed::test {

inline const c10::Device kDevice(c10::kCUDA, 0);

/// Filled with NaN.
c10::DataPtr allocate_on_device(size_t bytes);
/// Where operators find the bytes at `device`; null for null.
void* host_view(const void* device);

/// The most bytes at once in blocks that were allocated since `count_peak_anew`. Older blocks don't
/// count: autograd's threads free some of theirs after `backward` has returned.
/// @{
int64_t peak_of_counted_bytes();
void count_peak_anew();
/// @}

/// The blocks that are allocated from `watch_new_blocks` on, until `forget_new_blocks`, and are not
/// freed yet: their places and sizes.
/// @{
void watch_new_blocks();
std::map<void*, size_t> new_blocks();
void forget_new_blocks();
/// @}

}  // namespace heed::test
