#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace heed::detail {

/// Whether two tensors on the CPU have the same sizes, dtype and bits; one NaN is as good as
/// another.
bool have_equal_bits(const at::Tensor& a, const at::Tensor& b);

/// Whether two tensors are equal in this way whose values may be in a file. They are read block by
/// block.
bool have_equal_values(const at::Tensor& a, const at::Tensor& b);

/// Calls `holds(first, count)` for blocks of the rows of tensors with this shape, of one dimension
/// or more, until it returns false. Returns whether it never did.
bool hold_all_blocks(const at::Tensor& shape,
                     const std::function<bool(int64_t first, int64_t count)>& holds);

}  // namespace heed::detail
