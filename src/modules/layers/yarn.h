#pragma once

#include <heed/rotary_embedding.h>

#include <cmath>

namespace heed::detail {

/// m(x) of YarnScaling: the number by which YaRN multiplies, for its factor of the length.
inline double yarn_magnitude(const YarnScaling& scaling, double x) {
  return 0.1 * x * std::log(scaling.factor()) + 1.0;
}

}  // namespace heed::detail
