// SPDX-License-Identifier: BSD-3-Clause
#include "core/map_slices.h"

// Must come before LegacyBatchedTensorImpl.h, whose functions have the same names.
#include <ATen/functorch/BatchedTensorImpl.h>
// Stands in a block of its own, because clang-format sorts the includes of a block.
#include <ATen/LegacyBatchedTensorImpl.h>
#include <ATen/core/functional.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/plain.h"

namespace heed::detail {

namespace {

/// A dimension that a vmap hides. torch.func and torch.autograd each have their own vmap.
struct HiddenDim {
  bool of_autograd;
  int64_t level;
  int64_t size;

  bool is_same(const HiddenDim& other) const {
    return of_autograd == other.of_autograd && level == other.level;
  }
};

/// The outermost hidden dimension of a tensor: the one that the innermost vmap hides.
std::optional<HiddenDim> outermost(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  if (at::isBatchedTensor(tensor)) {
    const auto& batched = *at::unsafeGetBatchedImpl(tensor);
    const auto& dim = batched.bdims().back();
    return HiddenDim{true, dim.level(), batched.value().size(dim.dim())};
  }
  if (tensor.key_set().has(c10::DispatchKey::FuncTorchBatched)) {
    const auto& batched = *at::functorch::unsafeGetBatchedImpl(tensor);
    return HiddenDim{false, batched.level(), batched.value().size(batched.bdim())};
  }
  return std::nullopt;
}

/// The outermost hidden dimension of all these tensors, which must be removed first.
std::optional<HiddenDim> outermost(const std::vector<at::Tensor>& tensors) {
  std::optional<HiddenDim> found;
  for (const auto& tensor : tensors) {
    const auto own = outermost(tensor);
    if (!own) continue;
    const auto order = [](const HiddenDim& dim) { return std::pair(dim.of_autograd, dim.level); };
    if (!found || order(*own) > order(*found)) found = own;
  }
  return found;
}

/// Slice n of `dim`. A dimension of size 0 gets a slice of zeros, from which the shapes of results
/// follow.
at::Tensor selected(const at::Tensor& values, int64_t dim, int64_t n) {
  return values.size(dim) > 0 ? values.select(dim, n) : at::zeros_like(values.sum(dim));
}

at::Tensor slice_of(const at::Tensor& tensor, const HiddenDim& dim, int64_t n) {
  const auto own = outermost(tensor);
  if (!own || !own->is_same(dim)) return tensor;
  if (!dim.of_autograd) {
    const auto& batched = *at::functorch::unsafeGetBatchedImpl(tensor);
    return selected(batched.value(), batched.bdim(), n);
  }
  const auto& batched = *at::unsafeGetBatchedImpl(tensor);
  const auto dims = batched.bdims();
  const auto taken = dims.back().dim();
  at::BatchDims others;
  for (const auto& other : dims.slice(0, dims.size() - 1)) {
    others.emplace_back(other.level(), other.dim() - (other.dim() > taken ? 1 : 0));
  }
  auto slice = selected(batched.value(), taken, n);
  return others.empty() ? slice : at::makeBatched(slice, std::move(others));
}

/// Joins slices to a tensor with the hidden dimension `dim`.
at::Tensor joined(const std::vector<at::Tensor>& slices, const HiddenDim& dim) {
  if (!slices.front().defined()) return {};
  auto values = at::stack(slices);
  if (dim.size == 0) values = values.narrow(0, 0, 0);
  return dim.of_autograd ? at::addBatchDim(std::move(values), dim.level, /*dim=*/0)
                         : at::functorch::makeBatched(std::move(values), /*dim=*/0, dim.level);
}

/// Calls `compute` on tensors without hidden dimensions. If no transform wraps them, the modes of
/// vmap are off.
std::vector<at::Tensor> compute_plainly(const std::vector<at::Tensor>& tensors,
                                        const TensorFunction& compute) {
  constexpr c10::DispatchKeySet kModes({c10::DispatchKey::VmapMode,
                                        c10::DispatchKey::FuncTorchVmapMode,
                                        c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                        c10::DispatchKey::FuncTorchDynamicLayerBackMode});
  const bool all = std::all_of(tensors.begin(), tensors.end(), is_unwrapped);
  const c10::impl::ExcludeDispatchKeyGuard guard(all ? kModes : c10::DispatchKeySet());
  return compute(tensors);
}

std::vector<at::Tensor> map_slices_of(const HiddenDim& dim, const std::vector<at::Tensor>& tensors,
                                      const TensorFunction& compute) {
  std::vector<std::vector<at::Tensor>> columns;
  for (int64_t n = 0; n < std::max<int64_t>(dim.size, 1); ++n) {
    const auto slices =
        c10::fmap(tensors, [&](const at::Tensor& tensor) { return slice_of(tensor, dim, n); });
    const auto inner = outermost(slices);
    auto results =
        inner ? map_slices_of(*inner, slices, compute) : compute_plainly(slices, compute);
    columns.resize(results.size());
    for (size_t i = 0; i < results.size(); ++i) columns[i].push_back(std::move(results[i]));
  }
  return c10::fmap(columns, [&](const auto& column) { return joined(column, dim); });
}

}  // namespace

std::vector<at::Tensor> map_slices(const std::vector<at::Tensor>& tensors,
                                   const TensorFunction& compute) {
  const auto dim = outermost(tensors);
  return dim ? map_slices_of(*dim, tensors, compute) : compute(tensors);
}

}  // namespace heed::detail
