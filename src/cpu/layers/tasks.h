#pragma once

#include <cstdint>

namespace heed::detail {

/// How many rows, or tokens, of so many elements are worth a thread.
constexpr int64_t units_per_task(int64_t elements) {
  constexpr int64_t kElements = 1 << 14;
  return elements > 0 && elements < kElements ? kElements / elements : 1;
}

}  // namespace heed::detail
