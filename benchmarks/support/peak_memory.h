// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>

namespace heed::bench {

/// Most bytes of tensor memory that `work` holds at one time, beyond what was allocated before it.
/// Counts LibTorch's allocators on a GPU, or on the CPU if `work` takes no memory on a GPU; not
/// what BLAS keeps for itself.
int64_t peak_memory(const std::function<void()>& work);

}  // namespace heed::bench
