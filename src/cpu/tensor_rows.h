// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "core/dtypes.h"
#include "cpu/isa/matrix.h"

namespace heed::detail {

inline ElementType element_type(const at::Tensor& tensor) {
  const auto type = element_type(tensor.scalar_type());
  TORCH_INTERNAL_ASSERT(type.has_value(), "unexpected dtype");
  return *type;
}

/// `count` rows along a tensor's last dimension; the first begins at element `offset`.
inline Rows rows_at(const at::Tensor& tensor, int64_t offset, int64_t count, int64_t row_stride) {
  auto* data = static_cast<char*>(const_cast<void*>(tensor.const_data_ptr())) +
               offset * tensor.element_size();
  return {data, element_type(tensor), count, tensor.size(-1), row_stride, tensor.stride(-1)};
}

/// Rows [first, first + count) of [B, H, L, D] at (b, h).
inline Rows tensor_rows(const at::Tensor& tensor, int64_t batch, int64_t head, int64_t first,
                        int64_t count) {
  const auto offset = batch * tensor.stride(0) + head * tensor.stride(1) + first * tensor.stride(2);
  return rows_at(tensor, offset, count, tensor.stride(2));
}

/// The address of row i of [B, H, L, D] at (b, h).
template <typename T = char>
const T* row_address(const at::Tensor& tensor, int64_t b, int64_t h, int64_t i) {
  const auto offset = b * tensor.stride(0) + h * tensor.stride(1) + i * tensor.stride(2);
  return reinterpret_cast<const T*>(static_cast<const char*>(tensor.const_data_ptr()) +
                                    offset * tensor.element_size());
}

/// Row b of a contiguous tensor [B or 1, n], or null if it is undefined.
template <typename T>
const T* row_of_batch(const at::Tensor& tensor, int64_t b) {
  if (!tensor.defined()) return nullptr;
  return tensor.const_data_ptr<T>() + (tensor.size(0) == 1 ? 0 : b * tensor.size(1));
}

}  // namespace heed::detail
