// SPDX-License-Identifier: BSD-3-Clause
#include "support/layouts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>

#include <numeric>
#include <vector>

namespace heed::test {

namespace {

at::Tensor every_second(const at::Tensor& dense) {
  auto wide = dense.sizes().vec();
  wide.back() *= 2;
  return at::empty(wide, dense.options()).slice(-1, 0, std::nullopt, 2).copy_(dense);
}

at::Tensor inner(const at::Tensor& dense) {
  auto wide = dense.sizes().vec();
  for (auto& size : wide) size += 2;
  auto result = at::empty(wide, dense.options());
  for (int64_t dim = 0; dim < dense.dim(); ++dim) result = result.narrow(dim, 1, dense.size(dim));
  return result.copy_(dense);
}

at::Tensor swapped(const at::Tensor& dense) {
  if (dense.dim() < 3) return dense.t().contiguous().t();
  return dense.transpose(-3, -2).contiguous().transpose(-3, -2);
}

at::Tensor reversed(const at::Tensor& dense) {
  std::vector<int64_t> order(static_cast<size_t>(dense.dim()));
  std::iota(order.rbegin(), order.rend(), 0);
  return dense.permute(order).contiguous().permute(order);
}

at::Tensor repeated_rows(const at::Tensor& dense) {
  const auto dim = dense.dim() < 2 ? 0 : dense.dim() - 2;
  return dense.narrow(dim, 0, 1).expand_as(dense);
}

at::Tensor unaligned(const at::Tensor& dense) {
  return at::empty({dense.numel() + 1}, dense.options())
      .narrow(0, 1, dense.numel())
      .view(dense.sizes())
      .copy_(dense);
}

at::Tensor negated(const at::Tensor& dense) {
  if (dense.is_complex()) return dense.conj();
  return dense.scalar_type() == at::kBool ? dense : at::_neg_view(every_second(dense.neg()));
}

}  // namespace

at::Tensor lay_out(const at::Tensor& dense, int64_t layout) {
  if (dense.dim() == 0 || dense.numel() == 0) return dense;
  switch (layout) {
    case kHeadsLast:
      return swapped(dense);
    case kReversed:
      return reversed(dense);
    case kEverySecond:
      return every_second(dense);
    case kInner:
      return inner(dense);
    case kRepeatedBatch:
      return dense.narrow(0, 0, 1).expand_as(dense);
    case kRepeatedElement:
      return dense.flatten()[0].expand_as(dense);
    case kRepeatedRows:
      return repeated_rows(dense);
    case kOverlapping:
      return dense.as_strided(dense.sizes(), std::vector<int64_t>(dense.sizes().size(), 1));
    case kUnaligned:
      return unaligned(dense);
    case kNegative:
      return negated(dense);
    default:
      return dense;
  }
}

}  // namespace heed::test
