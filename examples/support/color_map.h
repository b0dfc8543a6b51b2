#pragma once

#include "color.h"

namespace heed::examples {

/// Matplotlib's viridis for `value` from 0 to 1; the color of an empty cell for NaN.
Color viridis(float value);

/// Paper at 0, ink at 1; the color of an empty cell for NaN.
Color ink(float value);

}  // namespace heed::examples
