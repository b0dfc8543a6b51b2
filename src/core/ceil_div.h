// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// Whole numbers of parts. This header includes nothing of std or ATen but <stdint.h>, and its
/// functions are static, so that cpu/isa can include it too: each instruction set compiles its own.

#include <stdint.h>

namespace heed::detail {

/// How many parts of this size hold `count` elements, of which there are none or more.
static constexpr int64_t ceil_div(int64_t count, int64_t size) {
  const auto divisor = static_cast<uint64_t>(size);  // unsigned, so that the sum fits
  return static_cast<int64_t>((static_cast<uint64_t>(count) + divisor - 1) / divisor);
}

/// The least multiple that is no less than `count`.
static constexpr int64_t round_up(int64_t count, int64_t multiple) {
  return ceil_div(count, multiple) * multiple;
}

}  // namespace heed::detail
