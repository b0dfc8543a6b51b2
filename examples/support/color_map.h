#pragma once

#include <array>
#include <cstdint>

namespace heed::examples {

/// Red, green and blue.
using Color = std::array<uint8_t, 3>;

/// Returns the color of `value` from 0 to 1 in Matplotlib's viridis; for NaN, that of an empty
/// cell.
Color viridis(float value);

/// Returns a color between paper at 0 and ink at 1; for NaN, that of an empty cell.
Color ink(float value);

}  // namespace heed::examples
