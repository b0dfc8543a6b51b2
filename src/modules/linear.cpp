#include "modules/linear.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tangents.h"
#include "cpu/capability.h"
#include "cpu/layers/transposed.h"

namespace heed::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// None if this LibTorch has no such operator, or one with other arguments.
std::optional<c10::OperatorHandle> find_pointwise() {
  constexpr std::array<std::string_view, 6> kArguments = {"X",    "W",       "B",
                                                          "attr", "scalars", "algorithm"};
  const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!found || !found->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return {};
  const auto& arguments = found->schema().arguments();
  const bool is_known =
      std::equal(arguments.begin(), arguments.end(), kArguments.begin(), kArguments.end(),
                 [](const auto& argument, auto name) { return argument.name() == name; });
  return is_known ? found : std::nullopt;
}

const std::optional<c10::OperatorHandle>& pointwise_operator() {
  static const auto found = find_pointwise();
  return found;
}

at::Tensor multiply_pointwise(const at::Tensor& input, const at::Tensor& weight,
                              const at::Tensor& bias) {
  const at::AutoDispatchBelowADInplaceOrView below;  // it has no formula for autograd
  const bool is_transposed = input.dim() == 2 && input.scalar_type() == at::kFloat &&
                             input.stride(0) == 1 && !input.is_contiguous();
  using Scalars = c10::List<std::optional<at::Scalar>>;
  std::vector<c10::IValue> stack = {is_transposed ? transposed(input.t()) : input,
                                    weight,
                                    bias.defined() ? c10::IValue(bias.contiguous()) : c10::IValue(),
                                    "none",
                                    Scalars(),
                                    ""};
  pointwise_operator()->callBoxed(stack);
  return std::move(stack.front()).toTensor();
}

/// Whether calling a kernel does all that calling an operator would: autocast, tracing, functorch
/// and modes are off.
bool calls_reach_kernels() {
  const auto included = c10::impl::tls_local_dispatch_key_set().included_;
  return c10::default_included_set.has_all(included) &&
         !at::autocast::is_autocast_enabled(at::kCPU);
}

/// Whether it is a strided tensor on the CPU that nothing wraps and that carries no tangent.
bool is_plain(const at::Tensor& tensor) {
  static const c10::DispatchKeySet plain(
      {c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutogradCPU,
       c10::DispatchKey::AutocastCPU});
  return tensor.defined() && plain.has_all(tensor.key_set()) && !has_tangent(tensor);
}

bool shapes_fit(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return input.dim() >= 1 && weight.dim() == 2 && input.size(-1) == weight.size(1) &&
         (!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0))) &&
         input.numel() > 0 && weight.numel() > 0;
}

bool are_plain(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const auto dtype = input.scalar_type();
  return is_plain(input) && is_plain(weight) && weight.scalar_type() == dtype &&
         (!bias.defined() || (is_plain(bias) && bias.scalar_type() == dtype));
}

/// docs/kernels.md has the measurements.
bool pointwise_is_faster(const at::Tensor& input, const at::Tensor& weight) {
  constexpr double kWorthwhile = 1 << 22;  // multiply-adds: its call costs more
  if (!pointwise_operator() || !at::globalContext().userEnabledMkldnn()) return false;
  if (!blas_properties().leaves_wide_vectors) return false;
  if (static_cast<double>(input.numel()) * static_cast<double>(weight.size(0)) < kWorthwhile) {
    return false;
  }
  if (weight.is_contiguous()) {
    return input.scalar_type() == at::kFloat || (input.scalar_type() == at::kBFloat16 &&
                                                 instruction_sets().back()->multiplies_bfloat16);
  }
  return input.scalar_type() == at::kFloat && weight.t().is_contiguous();
}

at::Tensor multiply(LinearProduct product, const at::Tensor& input, const at::Tensor& weight,
                    const at::Tensor& bias) {
  switch (product) {
    case LinearProduct::libtorch:
      break;
    case LinearProduct::pointwise:
      return multiply_pointwise(input, weight, bias);
  }
  return at::linear(input, weight, bias);
}

/// A product without a formula for autograd of its own. Its gradients are products that `linear`
/// computes, which have gradients in turn.
struct RecordedLinear : public torch::autograd::Function<RecordedLinear> {
  static Variable forward(AutogradContext* context, const Variable& input, const Variable& weight,
                          const std::optional<Variable>& bias, LinearProduct product) {
    context->save_for_backward({weight.requires_grad() ? input : Variable(),
                                input.requires_grad() ? weight : Variable()});
    context->saved_data["has_bias"] = bias.has_value();
    return multiply(product, input, weight, bias.value_or(Variable()));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto& input = saved[0];
    const auto& weight = saved[1];
    const auto& gradient = gradients[0];
    const auto rows = gradient.reshape({-1, gradient.size(-1)});
    variable_list result(4);
    if (weight.defined() && context->needs_input_grad(0)) result[0] = detail::linear(gradient, weight.t());
    if (input.defined() && context->needs_input_grad(1)) {
      result[1] = detail::linear(rows.t(), input.reshape({-1, input.size(-1)}).t());
    }
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) {
      result[2] = rows.sum(0);
    }
    return result;
  }
};

}  // namespace

LinearProduct linear_product(const at::Tensor& input, const at::Tensor& weight,
                             const at::Tensor& bias) {
  const bool kernels_take = calls_reach_kernels() && are_plain(input, weight, bias) &&
                            shapes_fit(input, weight, bias);
  if (kernels_take && pointwise_is_faster(input, weight)) return LinearProduct::pointwise;
  return LinearProduct::libtorch;
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const auto product = linear_product(input, weight, bias);
  const bool records =
      at::GradMode::is_enabled() && (input.requires_grad() || weight.requires_grad() ||
                                     (bias.defined() && bias.requires_grad()));
  if (product == LinearProduct::libtorch || !records) return multiply(product, input, weight, bias);
  return RecordedLinear::apply(
      input, weight, bias.defined() ? std::optional(bias) : std::nullopt, product);
}

}  // namespace heed::detail
