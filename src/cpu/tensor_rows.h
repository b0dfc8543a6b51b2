#pragma once

#include <ATen/core/Tensor.h>

#include "cpu/isa/matrix.h"

namespace heed::detail {

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

/// `count` rows along a tensor's last dimension; the first begins at element `offset`.
inline Rows rows_at(const at::Tensor& tensor, int64_t offset, int64_t count, int64_t row_stride) {
  auto* data = static_cast<char*>(const_cast<void*>(tensor.const_data_ptr())) +
               offset * tensor.element_size();
  return {data, element_type(tensor), count, tensor.size(-1), row_stride, tensor.stride(-1)};
}

}  // namespace heed::detail
