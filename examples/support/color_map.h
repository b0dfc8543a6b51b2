#pragma once

#include "color.h"

namespace heed::examples {

/// Returns the color of `value` from 0 to 1 in Matplotlib's viridis; for NaN, that of an empty
/// cell.
Color viridis(float value);

/// Returns a color between paper at 0 and ink at 1; for NaN, that of an empty cell.
Color ink(float value);

}  // namespace heed::examples
