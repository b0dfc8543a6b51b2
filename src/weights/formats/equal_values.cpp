// SPDX-License-Identifier: BSD-3-Clause
#include "weights/formats/equal_values.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <cstring>

#include "weights/formats/file_tensors.h"

namespace heed::detail {

namespace {

/// Converts numbers to real ones of 4 or 8 bytes without loss, so that their bits can be viewed as
/// integers of that width.
at::Tensor widened(const at::Tensor& numbers) {
  const auto real = numbers.is_complex() ? at::view_as_real(numbers) : numbers;
  return real.element_size() < 4 ? real.to(at::kFloat) : real;
}

at::Tensor rows_of(const at::Tensor& tensor, int64_t first, int64_t count) {
  return with_values(with_rows(tensor).narrow(0, first, count)).cpu();
}

}  // namespace

bool have_equal_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const auto one = a.resolve_conj().resolve_neg().contiguous(),
             other = b.resolve_conj().resolve_neg().contiguous();
  const bool same = one.numel() == 0 ||
                    std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
  if (same || !(one.is_floating_point() || one.is_complex())) return same;
  const auto x = widened(one), y = widened(other);
  const auto bits = x.element_size() == 8 ? at::kLong : at::kInt;
  return x.view(bits)
      .eq(y.view(bits))
      .logical_or_(x.isnan().logical_and_(y.isnan()))
      .all()
      .item<bool>();
}

bool have_equal_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (share_values(a, b)) return true;
  return hold_all_blocks(with_rows(a), [&](int64_t first, int64_t count) {
    return have_equal_bits(rows_of(a, first, count), rows_of(b, first, count));
  });
}

bool hold_all_blocks(const at::Tensor& shape,
                     const std::function<bool(int64_t first, int64_t count)>& holds) {
  // If the file has the rows as columns, fewer rows would mean many short reads.
  constexpr int64_t kBytes = int64_t{1} << 24, kFewestRows = 512;
  if (shape.numel() == 0) return true;
  const auto all = shape.size(0);
  const auto row = shape.numel() / all * shape.element_size();
  const auto rows = std::max(kFewestRows, kBytes / row);
  for (int64_t first = 0; first < all; first += rows) {
    if (!holds(first, std::min(rows, all - first))) return false;
  }
  return true;
}

}  // namespace heed::detail
