// SPDX-License-Identifier: BSD-3-Clause
#include "core/check_memory.h"

#include <c10/core/ScalarType.h>

#include "core/error.h"

namespace heed::detail {

void check_memory(const char* function, const char* name, at::IntArrayRef sizes,
                  at::ScalarType dtype) {
  auto room = (int64_t{1} << 47) / static_cast<int64_t>(c10::elementSize(dtype));
  for (const auto size : sizes) {
    if (size == 0) return;
    room /= size;
  }
  HEED_CHECK(room >= 1, "{}: {} {} must take at most 2^47 bytes", function, name, c10::str(sizes));
}

}  // namespace heed::detail
