#pragma once

#include "core/error.h"

namespace heed::detail {

/// Runs what reads or writes a file, which does not know for whom: its errors begin with
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
