// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace heed::bench {

/// Kernels, copies and fills that `work` has a GPU do, as LibTorch's profiler records them; none
/// without a GPU, or if the profiler records none.
std::optional<int64_t> kernels_launched(const std::function<void()>& work);

}  // namespace heed::bench
