#pragma once

#include <ATen/ops/dropout.h>

namespace heed::detail {

/// Dropout of a layer's output; x itself where there is none.
inline at::Tensor drop_out(const at::Tensor& x, double probability, bool training) {
  return training && probability > 0.0 ? at::dropout(x, probability, training) : x;
}

}  // namespace heed::detail
