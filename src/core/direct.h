#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include "core/plain.h"

/// Memory and views that are made without LibTorch's dispatcher, which takes longer than the
/// kernels of a small model's step.

namespace heed::detail {

/// Uninitialized and contiguous, on the CPU.
inline at::Tensor empty_on_cpu(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::detail::empty_cpu(sizes, dtype);
}

/// [B, H, L, D] in the memory of [B, L, H, D], where heads merge without a copy.
inline at::Tensor empty_heads(int64_t batch, int64_t heads, int64_t length, int64_t columns,
                              at::ScalarType dtype) {
  return at::detail::empty_strided_cpu({batch, heads, length, columns},
                                       {length * heads * columns, columns, heads * columns, 1},
                                       dtype);
}

/// at::empty_like of a tensor on the CPU.
inline at::Tensor empty_as(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return empty_on_cpu(tensor.sizes(), tensor.scalar_type());
  if (!tensor.is_non_overlapping_and_dense()) return at::empty_like(tensor);
  return at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

/// Whether a view of the tensor needs nothing of LibTorch: no autograd, no transform.
inline bool takes_direct_views(const at::Tensor& tensor) {
  return !(at::GradMode::is_enabled() && tensor.requires_grad()) && is_plain(tensor) &&
         calls_reach_kernels();
}

/// A view of a tensor that takes direct views. Autograd notices a change of the tensor in the view
/// too.
inline at::Tensor direct_view(const at::Tensor& tensor, at::IntArrayRef sizes,
                              at::IntArrayRef strides) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes, strides, tensor.storage_offset());
  impl->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  return view;
}

/// tensor.as_strided(sizes, strides).
inline at::Tensor strided_view(const at::Tensor& tensor, at::IntArrayRef sizes,
                               at::IntArrayRef strides) {
  return takes_direct_views(tensor) ? direct_view(tensor, sizes, strides)
                                    : tensor.as_strided(sizes, strides);
}

}  // namespace heed::detail
