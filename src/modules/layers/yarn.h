// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/rotary_embedding.h>

#include <cmath>

namespace heed::detail {

/// m(x) = 0.1 x ln(factor) + 1, from which YaRN computes the factor of query and key.
inline double yarn_magnitude(const YarnScaling& scaling, double x) {
  return 0.1 * x * std::log(scaling.factor()) + 1.0;
}

}  // namespace heed::detail
