// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <heed/linear_cross_entropy.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <optional>
#include <string>

#include "core/dtypes.h"
#include "core/error.h"
#include "modules/layers/linear_cross_entropy.h"
#include "ops/traced.h"

/// The operators linear_cross_entropy and linear_cross_entropy_backward:
///
///   linear_cross_entropy_backward(output_gradient, <arguments>, wanted) -> <gradients>

namespace heed::detail {

namespace {

constexpr auto kLoss = "linear_cross_entropy";
constexpr auto kLossBackward = "linear_cross_entropy_backward";
constexpr auto kLossArguments =
    "Tensor x, Tensor weight, Tensor targets, *, Tensor? bias=None, Tensor? class_weight=None, int "
    "ignore_index=-100, float label_smoothing=0.0, float z_loss=0.0, float? softcap=None, str "
    "reduction=\"mean\"";

struct LossArguments {
  at::Tensor x, weight, targets;
  LinearCrossEntropyOptions options;

  /// The tensors that may require grad: x, weight and, if there is one, the bias.
  variable_list inputs() const {
    variable_list found = {x, weight};
    if (options.bias()) found.push_back(*options.bias());
    return found;
  }
};

LossReduction reduction_of(const std::string& name) {
  if (name == "sum") return LossReduction::sum;
  if (name == "none") return LossReduction::none;
  HEED_CHECK(name == "mean", "{}: reduction ({}) must be mean, sum or none", kLoss, name);
  return LossReduction::mean;
}

LossArguments read_loss(Arguments& arguments) {
  LossArguments call;
  call.x = arguments.next<at::Tensor>();
  call.weight = arguments.next<at::Tensor>();
  call.targets = arguments.next<at::Tensor>();
  auto& options = call.options;
  options.bias(arguments.next<std::optional<at::Tensor>>());
  options.class_weight(arguments.next<std::optional<at::Tensor>>());
  options.ignore_index(arguments.next<int64_t>());
  options.label_smoothing(arguments.next<double>());
  options.z_loss(arguments.next<double>());
  options.softcap(arguments.next<std::optional<double>>());
  options.reduction(reduction_of(arguments.next<std::string>()));
  return call;
}

Results loss_own(Arguments& arguments) {
  const auto call = read_loss(arguments);
  return {linear_cross_entropy(call.x, call.weight, call.targets, call.options)};
}

Results loss_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  return loss_own(arguments);
}

void check_meta(const LossArguments& call) {
  auto tensors = call.inputs();
  tensors.push_back(call.targets);
  if (call.options.class_weight()) tensors.push_back(*call.options.class_weight());
  if (has_symbolic_sizes(tensors)) return;
  check_linear_cross_entropy(kLoss, call.x, call.weight, call.targets, call.options);
}

Results loss_on_meta(Arguments& arguments) {
  const auto call = read_loss(arguments);
  check_meta(call);
  const auto options = call.x.options().dtype(compute_dtype(call.x.scalar_type()));
  return {call.options.reduction() == LossReduction::none
              ? at::empty_symint(call.targets.sym_sizes(), options)
              : at::empty({}, options)};
}

Results loss_backward_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  // Autocast has converted the tensors, and must not do so again.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto of_loss = arguments.next<at::Tensor>();
  const auto call = read_loss(arguments);
  auto wanted = arguments.next_flags<3>();
  wanted[2] = wanted[2] && call.options.bias();
  auto found = linear_cross_entropy_gradients(of_loss, call.x, call.weight, call.targets,
                                              call.options, wanted);
  Results gradients = {std::move(found.x), std::move(found.weight), std::move(found.bias)};
  const auto inputs = call.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) gradients[i] = laid_out_like(gradients[i], inputs[i]);
  return gradients;
}

Results loss_backward_on_meta(Arguments& arguments) {
  arguments.next<at::Tensor>();
  const auto inputs = read_loss(arguments).inputs();
  const auto wanted = arguments.next_flags<3>();
  Results gradients(wanted.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (wanted[i]) gradients[i] = at::empty_like(inputs[i]);
  }
  return gradients;
}

struct TracedLoss : public torch::autograd::Function<TracedLoss> {
  static Variable forward(AutogradContext* context, at::TensorList /*inputs*/,
                          const Stack& arguments) {
    const at::AutoDispatchBelowADInplaceOrView below;
    save_call(context, arguments, {});
    return call_operator(kLoss, arguments)[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_results) {
    auto stack = saved_call(context).arguments;
    Arguments arguments(stack, stack.size());
    const auto count = read_loss(arguments).inputs().size();
    stack.insert(stack.begin(), of_results[0]);
    c10::List<bool> wanted;
    for (size_t i = 0; i < 3; ++i) wanted.push_back(i < count && context->needs_input_grad(i));
    stack.emplace_back(std::move(wanted));
    auto gradients = call_operator(kLossBackward, std::move(stack));
    gradients.resize(count);
    gradients.emplace_back();  // for arguments
    return gradients;
  }
};

CallToRecord described_loss(Arguments& arguments) { return {read_loss(arguments).inputs()}; }

Results loss_traced(const Stack& arguments, const CallToRecord& to_record) {
  return {TracedLoss::apply(at::TensorList(to_record.inputs), arguments)};
}

void register_loss(torch::Library& library) {
  library.impl(kLoss, boxed<loss_on_device>());
  library.impl(kLossBackward, boxed<loss_backward_on_device>());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(heed, library) {
  define(library, fmt::format("{}({}) -> Tensor", kLoss, kLossArguments), /*draws=*/false);
  define(library,
         fmt::format("{}(Tensor output_gradient, {}, bool[3] wanted=[True, True, True]) -> (Tensor "
                     "x_gradient, Tensor weight_gradient, Tensor bias_gradient)",
                     kLossBackward, kLossArguments),
         /*draws=*/false);
}

TORCH_LIBRARY_IMPL(heed, CPU, library) { register_loss(library); }

TORCH_LIBRARY_IMPL(heed, CUDA, library) { register_loss(library); }

TORCH_LIBRARY_IMPL(heed, Meta, library) {
  library.impl(kLoss, boxed<loss_on_meta>());
  library.impl(kLossBackward, boxed<loss_backward_on_meta>());
}

TORCH_LIBRARY_IMPL(heed, Autograd, library) {
  library.impl(kLoss, torch::CppFunction::makeFromBoxedFunction<
                          &call_recorded<loss_own, described_loss, loss_traced>>());
  library.impl(kLossBackward, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace heed::detail
