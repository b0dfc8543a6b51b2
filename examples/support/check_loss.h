#pragma once

#include <cmath>
#include <stdexcept>

namespace heed::examples {

/// Throws std::runtime_error when `loss` says that a training has diverged. To be asked before
/// anything is saved: what was saved earlier is worth more.
inline void check_loss(double loss) {
  if (!std::isfinite(loss)) {
    throw std::runtime_error("the loss is no longer finite: try a smaller --learning-rate");
  }
}

}  // namespace heed::examples
