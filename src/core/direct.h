// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "core/plain.h"

/// Functions that allocate tensors and make views without LibTorch's dispatcher. In a small
/// model's step the dispatcher takes longer than the kernels.

namespace heed::detail {

/// An uninitialized contiguous tensor on the CPU.
inline at::Tensor empty_on_cpu(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::detail::empty_cpu(sizes, dtype);
}

/// An uninitialized tensor [B, H, L, D] with the memory order of [B, L, H, D], so that merge_heads
/// needs no copy.
inline at::Tensor empty_heads(int64_t batch, int64_t heads, int64_t length, int64_t columns,
                              at::ScalarType dtype) {
  return at::detail::empty_strided_cpu({batch, heads, length, columns},
                                       {length * heads * columns, columns, heads * columns, 1},
                                       dtype);
}

/// Returns what at::empty_like would, for a tensor on the CPU.
inline at::Tensor empty_as(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return empty_on_cpu(tensor.sizes(), tensor.scalar_type());
  if (!tensor.is_non_overlapping_and_dense()) return at::empty_like(tensor);
  return at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

/// Whether direct_view may make views of the tensor: autograd does not record it, and no transform
/// is active.
inline bool takes_direct_views(const at::Tensor& tensor) {
  return !(at::GradMode::is_enabled() && tensor.requires_grad()) && is_plain(tensor) &&
         calls_reach_kernels();
}

/// A view of a tensor for which takes_direct_views is true. The view shares the tensor's version
/// counter, so autograd notices changes in place.
inline at::Tensor direct_view(const at::Tensor& tensor, at::IntArrayRef sizes,
                              at::IntArrayRef strides) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes, strides, tensor.storage_offset());
  impl->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  return view;
}

/// Returns tensor.as_strided(sizes, strides), by direct_view if the tensor takes direct views.
inline at::Tensor strided_view(const at::Tensor& tensor, at::IntArrayRef sizes,
                               at::IntArrayRef strides) {
  return takes_direct_views(tensor) ? direct_view(tensor, sizes, strides)
                                    : tensor.as_strided(sizes, strides);
}

}  // namespace heed::detail
