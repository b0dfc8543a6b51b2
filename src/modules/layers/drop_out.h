// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "cpu/layers/drop_out.h"

namespace heed::detail {

/// Applies dropout to a layer's output. Returns x itself if there is none.
inline at::Tensor drop_out(const at::Tensor& x, double probability, bool training) {
  return training && probability > 0.0 ? drop_elements(x, probability) : x;
}

}  // namespace heed::detail
