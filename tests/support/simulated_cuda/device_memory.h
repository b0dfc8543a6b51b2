#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

/// The memory of the simulated device. It is mapped twice: where tensors say that it is, nobody may
/// touch it; operators find the same bytes elsewhere.

namespace heed::test {

inline const c10::Device kDevice(c10::kCUDA, 0);

/// Filled with NaN.
c10::DataPtr allocate_on_device(size_t bytes);
/// Where operators find the bytes at `device`; null for null.
void* host_view(const void* device);

int64_t bytes_on_device();
int64_t peak_bytes_on_device();
void reset_peak_of_device();

}  // namespace heed::test
