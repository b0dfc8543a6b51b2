// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace heed::detail {

/// Makes a scalar one row, so that every tensor has rows.
inline at::Tensor with_rows(const at::Tensor& tensor) {
  return tensor.dim() == 0 ? tensor.unsqueeze(0) : tensor;
}

/// Whether two tensors on the CPU have the same sizes, dtype and bits; one NaN is as good as
/// another.
bool have_equal_bits(const at::Tensor& a, const at::Tensor& b);

/// `have_equal_bits` for tensors whose values may be in a file. They are read block by block.
bool have_equal_values(const at::Tensor& a, const at::Tensor& b);

/// Calls `holds(first, count)` for blocks of the rows of a tensor with this shape, until one
/// returns false. Returns whether all returned true. The shape has one dimension or more.
bool hold_all_blocks(const at::Tensor& shape,
                     const std::function<bool(int64_t first, int64_t count)>& holds);

}  // namespace heed::detail
