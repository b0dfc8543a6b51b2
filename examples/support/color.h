// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>

namespace heed::examples {

/// Red, green and blue.
using Color = std::array<uint8_t, 3>;

}  // namespace heed::examples
