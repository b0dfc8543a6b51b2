#pragma once

#include <c10/core/ScalarType.h>

namespace heed::detail {

/// What attention and the kernels take.
inline bool is_attention_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 ||
         dtype == at::kHalf;
}

/// What numbers of this dtype are computed in: float64 in itself, all others in float32.
inline at::ScalarType compute_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace heed::detail
