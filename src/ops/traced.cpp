// SPDX-License-Identifier: BSD-3-Clause
#include "ops/traced.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randint.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <limits>

#include "core/plain.h"

namespace heed::detail {

namespace {

bool is_wrapped_by_functorch(const at::Tensor& tensor) {
  return tensor.defined() &&
         tensor.key_set().has_any(c10::DispatchKeySet(
             {c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched}));
}

/// Whether `condition` holds for a tensor among the `count` arguments on top of the stack.
template <typename Condition>
bool any_tensor(const Stack& stack, size_t count, const Condition& condition) {
  return std::any_of(
      stack.end() - static_cast<std::ptrdiff_t>(count), stack.end(),
      [&](const c10::IValue& value) { return value.isTensor() && condition(value.toTensor()); });
}

/// The arguments of a call without its tensors, which autograd keeps.
struct SavedArguments : torch::CustomClassHolder {
  SavedArguments(Stack arguments, size_t results)
      : arguments(std::move(arguments)), results(results) {}
  Stack arguments;  // undefined tensors in place of tensors
  size_t results;   // how many of the kept tensors are results
};

}  // namespace

bool records_itself(const Stack& stack, size_t count) {
  const auto is_wrapped = [](const at::Tensor& tensor) { return !is_unwrapped(tensor); };
  if (calls_reach_kernels() && !any_tensor(stack, count, is_wrapped)) return true;
  // Functorch does not support autograd Functions in C++, so it gets heed's function.
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode) ||
         any_tensor(stack, count, is_wrapped_by_functorch);
}

bool needs_passes(const CallToRecord& call) {
  if (call.dropout > 0.0) return true;
  return at::GradMode::is_enabled() &&
         std::any_of(call.inputs.begin(), call.inputs.end(),
                     [](const auto& tensor) { return tensor.requires_grad(); });
}

c10::IValue traced_seed(double dropout) {
  if (dropout == 0.0) return {};
  return at::randint(std::numeric_limits<int64_t>::max(), {1}, at::kLong);
}

uint64_t seed_of(const std::optional<at::Tensor>& seed) {
  return seed ? static_cast<uint64_t>(seed->item<int64_t>()) : 0;
}

void save_call(AutogradContext* context, Stack arguments, Results results) {
  const auto count = results.size();
  auto saved = std::move(results);
  for (auto& argument : arguments) {
    if (!argument.isTensor()) continue;
    saved.push_back(argument.toTensor());
    argument = at::Tensor();
  }
  context->save_for_backward(std::move(saved));
  context->saved_data["call"] =
      c10::IValue::make_capsule(c10::make_intrusive<SavedArguments>(std::move(arguments), count));
}

SavedStack saved_call(AutogradContext* context) {
  const auto saved = context->get_saved_variables();
  const auto capsule = context->saved_data["call"].toCapsule();
  const auto& call = static_cast<const SavedArguments&>(*capsule);
  const auto results = static_cast<std::ptrdiff_t>(call.results);
  SavedStack found{call.arguments, {saved.begin(), saved.begin() + results}};
  auto next = saved.begin() + results;
  for (auto& argument : found.arguments) {
    if (argument.isTensor()) argument = *next++;
  }
  return found;
}

at::Tensor laid_out_like(const at::Tensor& gradient, const at::Tensor& tensor) {
  if (!gradient.defined()) return gradient;
  const auto wanted = at::empty_like(tensor, tensor.options().device(at::kMeta));
  if (gradient.strides() == wanted.strides() && gradient.scalar_type() == tensor.scalar_type()) {
    return gradient;
  }
  return at::empty_like(tensor).copy_(gradient);
}

at::Tensor empty_dense(const at::Tensor& tensor) {
  return at::empty_symint(tensor.sym_sizes(), tensor.options());
}

bool has_symbolic_sizes(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  });
}

}  // namespace heed::detail
