// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "core/error.h"

namespace heed::detail {

/// Runs code that reads or writes a file and does not know its caller. Prefixes its errors with
/// "`function`: ".
template <typename Run>
auto named(const char* function, const Run& run) {
  try {
    return run();
  } catch (const c10::ValueError& error) {
    HEED_CHECK(false, "{}: {}", function, error.what_without_backtrace());
  }
}

}  // namespace heed::detail
