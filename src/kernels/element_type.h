#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/matrix.h"

namespace heed::detail {

/// Whether kernels take elements of this type.
inline bool is_element_type(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 ||
         dtype == at::kHalf;
}

inline ElementType element_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return ElementType::float64;
    case at::kFloat:
      return ElementType::float32;
    case at::kBFloat16:
      return ElementType::bfloat16;
    case at::kHalf:
      return ElementType::float16;
    default:
      TORCH_INTERNAL_ASSERT(false, "unexpected dtype");
  }
}

}  // namespace heed::detail
