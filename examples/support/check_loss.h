#pragma once

#include <cmath>
#include <stdexcept>

namespace heed::examples {

/// Throws std::runtime_error when `loss` is not finite: the training has diverged. Call it before
/// saving anything, so that an earlier, better state is not overwritten.
inline void check_loss(double loss) {
  if (!std::isfinite(loss)) {
    throw std::runtime_error("the loss is no longer finite: try a smaller --learning-rate");
  }
}

}  // namespace heed::examples
