// SPDX-License-Identifier: BSD-3-Clause
#include "modules/layers/linear_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <heed/stand_ins.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "core/autocast.h"
#include "core/checks.h"
#include "core/dtypes.h"
#include "core/map_slices.h"
#include "core/plain.h"
#include "core/tangents.h"
#include "cpu/layers/function.h"
#include "cpu/layers/packed_weight.h"
#include "modules/layers/linear.h"
#include "modules/layers/stand_in.h"

namespace heed {

namespace detail {

namespace {

constexpr auto kLinearCrossEntropy = "linear_cross_entropy";

void check_loss_options(const char* function, const LinearCrossEntropyOptions& options) {
  const auto smoothing = options.label_smoothing();
  HEED_CHECK(smoothing >= 0.0 && smoothing <= 1.0, "{}: label_smoothing ({}) must be in [0, 1]",
             function, smoothing);
  HEED_CHECK(std::isfinite(options.z_loss()) && options.z_loss() >= 0.0,
             "{}: z_loss ({}) must be finite and at least 0", function, options.z_loss());
  const auto& softcap = options.softcap();
  HEED_CHECK(!softcap || (std::isfinite(*softcap) && *softcap > 0.0),
             "{}: softcap ({}) must be finite and above 0", function, softcap.value_or(0.0));
}

/// Checks the targets of scores [rows, classes].
void check_targets(const char* function, const at::Tensor& targets, int64_t rows, int64_t classes,
                   int64_t ignore_index) {
  HEED_CHECK(targets.scalar_type() == at::kLong, "{}: targets dtype ({}) must be Long", function,
             c10::toString(targets.scalar_type()));
  check_rank(function, "targets", targets, 1);
  HEED_CHECK(targets.size(0) == rows, "{}: targets dim 0 ({}) must equal x dim 0 ({})", function,
             targets.size(0), rows);
  // On other devices targets are not checked: reading them would wait for the device.
  if (!is_plain(targets) || !calls_reach_kernels()) return;
  const auto numbers = targets.contiguous();
  const auto* y = numbers.const_data_ptr<int64_t>();
  const auto* wrong = std::find_if(y, y + rows, [&](int64_t target) {
    return (target < 0 || target >= classes) && target != ignore_index;
  });
  HEED_CHECK(wrong == y + rows,
             "{}: targets[{}] ({}) must be ignore_index ({}), or at least 0 and below V ({})",
             function, wrong - y, *wrong, ignore_index, classes);
}

void check_class_weight(const char* function, const at::Tensor& class_weight, const at::Tensor& x,
                        int64_t classes) {
  check_defined(function, "class_weight", class_weight);
  check_rank(function, "class_weight", class_weight, 1);
  check_same_device(function, "class_weight", class_weight, "x", x);
  HEED_CHECK(class_weight.size(0) == classes,
             "{}: class_weight dim 0 ({}) must equal V ({}); class_weight {}", function,
             class_weight.size(0), classes, shape(class_weight));
  HEED_CHECK(!class_weight.requires_grad(), "{}: class_weight must not require grad", function);
}

/// Checks the dtype of class_weight for x, or for scores.
void check_class_weight_dtype(const char* function, const LinearCrossEntropyOptions& options,
                              const at::Tensor& x) {
  const auto& class_weight = options.class_weight();
  if (class_weight && class_weight->scalar_type() != compute_dtype(x.scalar_type())) {
    check_same_dtype(function, "class_weight", *class_weight, "x", x);
  }
}

/// Checks all but the dtypes, which autocast may convert, of tensors with known sizes.
void check_arguments(const char* function, const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& targets, const LinearCrossEntropyOptions& options,
                     const SharedClasses* shared) {
  check_defined(function, "x", x);
  check_defined(function, "weight", weight);
  check_defined(function, "targets", targets);
  check_rank(function, "x", x, 2);
  check_rank(function, "weight", weight, 2);
  check_same_device(function, "weight", weight, "x", x);
  check_same_device(function, "targets", targets, "x", x);
  check_same_dim(function, "weight", weight, "x", x, 1);
  HEED_CHECK(weight.size(0) >= 1, "{}: weight dim 0 (0) must be at least 1; weight {}", function,
             shape(weight));
  if (const auto& bias = options.bias()) {
    check_defined(function, "bias", *bias);
    check_rank(function, "bias", *bias, 1);
    check_same_device(function, "bias", *bias, "x", x);
    check_same_dim(function, "bias", *bias, "weight", weight, 0);
  }
  const auto classes = shared != nullptr ? shared->whole : weight.size(0);
  if (const auto& given = options.class_weight()) check_class_weight(function, *given, x, classes);
  check_loss_options(function, options);
  check_targets(function, targets, x.size(0), classes, options.ignore_index());
}

void check_dtypes(const char* function, const at::Tensor& x, const at::Tensor& weight,
                  const at::Tensor& bias, const LinearCrossEntropyOptions& options) {
  check_floating(function, "x", x);
  check_same_dtype(function, "weight", weight, "x", x);
  if (bias.defined()) check_same_dtype(function, "bias", bias, "x", x);
  check_class_weight_dtype(function, options, x);
}

/// The options and targets of a call. Its other tensors are still undefined.
LossCall call_of(const at::Tensor& targets, const LinearCrossEntropyOptions& options) {
  LossCall call;
  call.targets = targets;
  call.ignore_index = options.ignore_index();
  call.reduction = options.reduction();
  call.label_smoothing = options.label_smoothing();
  call.z_loss = options.z_loss();
  call.softcap = options.softcap().value_or(0.0);
  return call;
}

void set_class_weight(LossCall& call, const LinearCrossEntropyOptions& options,
                      at::ScalarType dtype) {
  const auto& given = options.class_weight();
  if (given) call.class_weight = given->to(compute_dtype(dtype)).resolve_neg().contiguous();
}

/// The checked arguments, converted as autocast does.
LossCall checked_call(const char* function, const at::Tensor& x, const at::Tensor& weight,
                      const at::Tensor& targets, const LinearCrossEntropyOptions& options,
                      const SharedClasses* shared) {
  check_linear_cross_entropy(function, x, weight, targets, options, shared);
  auto call = call_of(targets, options);
  call.x = x;
  call.weight = weight;
  call.bias = options.bias().value_or(at::Tensor());
  if (is_converted_by_autocast(x)) {
    const auto device = x.device().type();
    const auto dtype = at::autocast::get_autocast_dtype(device);
    for (auto* tensor : {&call.x, &call.weight, &call.bias}) {
      if (tensor->defined()) *tensor = at::autocast::cached_cast(dtype, *tensor, device);
    }
    check_dtypes(function, call.x, call.weight, call.bias, options);
  }
  set_class_weight(call, options, call.x.scalar_type());
  return call;
}

/// The loss of scores [N, V], by LibTorch's operators, with all derivatives.
at::Tensor loss_of_scores(const at::Tensor& scores, const LossCall& call) {
  auto s = scores.to(compute_dtype(scores.scalar_type()));
  if (call.softcap != 0.0) s = call.softcap * at::tanh(s / call.softcap);
  const bool is_reduced = call.reduction != LossReduction::none;
  const auto& weight = call.class_weight;
  const auto given = weight.defined() ? std::optional(weight) : std::nullopt;
  auto loss = at::cross_entropy_loss(s, call.targets, given,
                                     is_reduced ? at::Reduction::Sum : at::Reduction::None,
                                     call.ignore_index, call.label_smoothing);
  const auto counted = count_by_operators(call, s.scalar_type());
  at::Tensor z;
  if (call.z_loss != 0.0) {
    z = (call.z_loss * s.logsumexp(1).square()).masked_fill(counted.ignored, 0.0);
    if (is_reduced) z = z.sum();
  }
  if (call.reduction == LossReduction::mean) {
    loss = loss / counted.weights;
    if (z.defined()) z = z / counted.rows;
  }
  return z.defined() ? loss + z : loss;
}

/// The loss with all derivatives, from all scores at once.
at::Tensor plain_loss(const LossCall& call) {
  // NaN of an ignored row stays out of the weight's gradient.
  const auto ignored = call.targets.eq(call.ignore_index).unsqueeze(1);
  return loss_of_scores(detail::linear(call.x.masked_fill(ignored, 0.0), call.weight, call.bias),
                        call);
}

/// The loss of a call, from the losses of its rows.
at::Tensor reduced(const LossCall& call, const CountedRows& rows, const at::Tensor& losses) {
  if (call.reduction == LossReduction::none) {
    if (!rows.places.defined()) return losses;
    return at::zeros(call.targets.sizes(), losses.options()).index_copy_(0, rows.places, losses);
  }
  const auto factor = remaining_factor(call, rows);
  return factor.defined() ? losses.sum() * factor : losses.sum();
}

/// The gradients of unreduced losses or, where these are reduced, of a loss with the gradient 1.
LossGradients unfinished_gradients(const LossCall& call, const CountedRows& rows,
                                   const WantedLossGradients& wanted, const at::Tensor& of_loss,
                                   const RowSums& sums) {
  at::Tensor upstream;
  if (call.reduction == LossReduction::none) {
    upstream = of_loss.resolve_neg().contiguous();
    if (rows.places.defined()) upstream = upstream.index_select(0, rows.places);
  }
  return pass_over_rows(call, rows, wanted, upstream, sums).gradients;
}

/// Multiplies gradients by that of a reduced loss, and converts them to the dtypes of the inputs.
LossGradients finished(const LossCall& call, const CountedRows& rows, LossGradients gradients,
                       const at::Tensor& of_loss) {
  auto factor = remaining_factor(call, rows);
  if (factor.defined()) {
    factor = factor * of_loss;
  } else if (call.reduction != LossReduction::none) {
    const bool is_one = of_loss.is_cpu() && of_loss.item<double>() == 1.0;
    if (!is_one) factor = of_loss;
  }
  for (auto* gradient : {&gradients.x, &gradients.weight, &gradients.bias}) {
    if (!gradient->defined()) continue;
    if (factor.defined()) {
      // Float16 might not hold the factor.
      if (gradient->scalar_type() == at::kHalf) *gradient = gradient->to(at::kFloat);
      gradient->mul_(factor);
    }
    *gradient = gradient->to(call.x.scalar_type());
  }
  return gradients;
}

/// A loss that autograd has recorded.
struct RecordedLossCall : torch::CustomClassHolder {
  LossCall call;  // without the tensors, which autograd keeps
  CountedRows rows;
  RowSums sums;
  LossGradients gradients;  // until a backward pass takes them; undefined without a reduction

  bool has_gradients() const {
    return gradients.x.defined() || gradients.weight.defined() || gradients.bias.defined();
  }
};

std::vector<at::Tensor*> tensors_of(LossCall& call) {
  return {&call.x, &call.weight, &call.bias, &call.targets, &call.class_weight};
}

/// The gradients by operators, which autograd can differentiate again.
variable_list differentiable_gradients(LossCall call, const WantedLossGradients& wanted,
                                       const at::Tensor& of_loss) {
  TORCH_CHECK_NOT_IMPLEMENTED(!call.shared,
                              "vocab_parallel_linear_cross_entropy: there is no second derivative");
  const at::AutoGradMode recording(true);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto tensors = tensors_of(call);
  variable_list inputs;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    // One tensor may be two inputs. Views tell them apart.
    *tensors[i] = tensors[i]->view_as(*tensors[i]);
    inputs.push_back(*tensors[i]);
  }
  const auto found = torch::autograd::grad({plain_loss(call)}, inputs, {of_loss},
                                           /*retain_graph=*/true, /*create_graph=*/true,
                                           /*allow_unused=*/true);
  variable_list gradients(wanted.size());
  auto next = found.begin();
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i]) gradients[i] = *next++;
  }
  return gradients;
}

struct RecordedLoss : public torch::autograd::Function<RecordedLoss> {
  /// `inputs` are x, weight and, if there is one, the bias.
  static at::Tensor forward(AutogradContext* context, at::TensorList inputs, const LossCall* call) {
    WantedLossGradients wanted{};
    if (call->reduction != LossReduction::none) {
      for (size_t i = 0; i < inputs.size(); ++i) wanted[i] = inputs[i].requires_grad();
    }
    auto recorded = c10::make_intrusive<RecordedLossCall>();
    recorded->call = *call;
    recorded->rows = count_rows(*call);
    auto pass = pass_over_rows(*call, recorded->rows, wanted);
    recorded->sums = std::move(pass.sums);
    recorded->gradients = std::move(pass.gradients);
    variable_list saved;
    for (auto* tensor : tensors_of(recorded->call)) {
      saved.push_back(std::exchange(*tensor, at::Tensor()));
    }
    context->save_for_backward(std::move(saved));
    auto loss = reduced(*call, recorded->rows, pass.losses);
    context->saved_data["call"] = c10::IValue::make_capsule(std::move(recorded));
    return loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_results) {
    const auto saved = context->get_saved_variables();
    const auto capsule = context->saved_data["call"].toCapsule();
    auto& recorded = static_cast<RecordedLossCall&>(*capsule);
    auto call = recorded.call;
    const auto tensors = tensors_of(call);
    for (size_t i = 0; i < saved.size(); ++i) *tensors[i] = saved[i];
    const size_t count = call.bias.defined() ? 3 : 2;
    WantedLossGradients wanted{};
    for (size_t i = 0; i < count; ++i) wanted[i] = context->needs_input_grad(i);
    // Kernels would drop a tangent.
    const bool by_operators = at::GradMode::is_enabled() || has_tangent(of_results[0]);
    auto gradients = by_operators ? differentiable_gradients(call, wanted, of_results[0])
                                  : map_slices(of_results, [&](const variable_list& slices) {
                                      return gradients_of(recorded, call, wanted, slices[0]);
                                    });
    gradients.resize(count);
    gradients.emplace_back();  // for call
    return gradients;
  }

 private:
  /// The first backward pass takes the gradients that the forward pass computed, so that it may
  /// change them in place. Any other pass computes them again.
  static variable_list gradients_of(RecordedLossCall& recorded, const LossCall& call,
                                    const WantedLossGradients& wanted, const at::Tensor& of_loss) {
    auto found = recorded.has_gradients()
                     ? std::exchange(recorded.gradients, {})
                     : unfinished_gradients(call, recorded.rows, wanted, of_loss, recorded.sums);
    if (!wanted[0]) found.x.reset();
    if (!wanted[1]) found.weight.reset();
    if (!wanted[2]) found.bias.reset();
    found = finished(call, recorded.rows, std::move(found), of_loss);
    return {std::move(found.x), std::move(found.weight), std::move(found.bias)};
  }
};

/// Whether the loss can be computed a block of rows at a time: LibTorch records no operators of it,
/// and the tensors have memory.
bool takes_blocks(LossCall call) {
  const auto tensors = tensors_of(call);
  return calls_reach_kernels() &&
         std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor* tensor) {
           return is_unwrapped(*tensor) && !has_tangent(*tensor) &&
                  !(tensor->defined() && tensor->is_meta());
         });
}

at::Tensor compute_loss(const LossCall& call) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (!call.shared && !takes_blocks(call)) return plain_loss(call);
  if (!is_recorded(call.x, call.weight, call.bias)) {
    const auto rows = count_rows(call);
    return reduced(call, rows, pass_over_rows(call, rows, {}).losses);
  }
  variable_list inputs = {call.x, call.weight};
  if (call.bias.defined()) inputs.push_back(call.bias);
  return RecordedLoss::apply(at::TensorList(inputs), &call);
}

/// The loss of scores [B, L, V] that a layer has computed in its own way.
at::Tensor loss_of_own_scores(const at::Tensor& scores, const at::Tensor& targets,
                              const LinearCrossEntropyOptions& options) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  check_defined(kLinearCrossEntropy, "targets", targets);
  check_same_device(kLinearCrossEntropy, "targets", targets, "x", scores);
  check_floating(kLinearCrossEntropy, "scores", scores);
  auto rows = scores.flatten(0, -2);
  if (const auto& bias = options.bias()) {
    check_defined(kLinearCrossEntropy, "bias", *bias);
    check_rank(kLinearCrossEntropy, "bias", *bias, 1);
    check_same_device(kLinearCrossEntropy, "bias", *bias, "scores", rows);
    HEED_CHECK(bias->size(0) == rows.size(1), "{}: bias dim 0 ({}) must equal scores dim 1 ({})",
               kLinearCrossEntropy, bias->size(0), rows.size(1));
    rows = rows + *bias;
  }
  const auto flat_targets = targets.flatten();
  check_loss_options(kLinearCrossEntropy, options);
  check_targets(kLinearCrossEntropy, flat_targets, rows.size(0), rows.size(1),
                options.ignore_index());
  if (options.class_weight()) {
    check_class_weight(kLinearCrossEntropy, *options.class_weight(), rows, rows.size(1));
  }
  check_class_weight_dtype(kLinearCrossEntropy, options, rows);
  auto call = call_of(flat_targets, options);
  set_class_weight(call, options, rows.scalar_type());
  return loss_of_scores(rows, call);
}

}  // namespace

void check_linear_cross_entropy(const char* function, const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets, const LinearCrossEntropyOptions& options,
                                const SharedClasses* shared) {
  check_arguments(function, x, weight, targets, options, shared);
  if (is_converted_by_autocast(x)) return;
  check_dtypes(function, x, weight, options.bias().value_or(at::Tensor()), options);
}

at::Tensor linear_cross_entropy_of_shard(const char* function, const at::Tensor& x,
                                         const at::Tensor& weight, const at::Tensor& targets,
                                         const LinearCrossEntropyOptions& options,
                                         const SharedClasses& shared) {
  auto call = checked_call(function, x, weight, targets, options, &shared);
  call.shared = std::make_shared<const SharedClasses>(shared);
  return compute_loss(call);
}

LossGradients linear_cross_entropy_gradients(const at::Tensor& of_loss, const at::Tensor& x,
                                             const at::Tensor& weight, const at::Tensor& targets,
                                             const LinearCrossEntropyOptions& options,
                                             const WantedLossGradients& wanted) {
  const auto call = checked_call(kLinearCrossEntropy, x, weight, targets, options, nullptr);
  const auto rows = count_rows(call);
  return finished(call, rows, unfinished_gradients(call, rows, wanted, of_loss, {}), of_loss);
}

at::Tensor loss_of_head(const torch::nn::Linear& head, const at::Tensor& x,
                        const at::Tensor& targets, const LinearCrossEntropyOptions& options) {
  if (const auto* own = stand_in_of(*head)) return own->loss(x, targets, options);
  return loss_of_head(LinearParameters{head->weight, head->bias}, x, targets, options);
}

at::Tensor loss_of_head(const torch::nn::Embedding& head, const at::Tensor& x,
                        const at::Tensor& targets, const LinearCrossEntropyOptions& options) {
  if (const auto* own = stand_in_of(*head)) return own->loss(x, targets, options);
  return loss_of_head(LinearParameters{head->weight, {}}, x, targets, options);
}

at::Tensor loss_of_head(const LinearParameters& head, const at::Tensor& x,
                        const at::Tensor& targets, const LinearCrossEntropyOptions& options) {
  // A packed weight can only be multiplied by, which computes all scores: it passes no gradients
  // from block to block, and cannot be converted.
  const bool is_packed = packed_weight_of(head.weight) != nullptr;
  if (is_packed && (is_recorded(x, head.bias) || is_converted_by_autocast(x))) {
    const auto bias = head.bias.defined() ? head.bias : options.bias().value_or(at::Tensor());
    auto without_bias = options;
    without_bias.bias(std::nullopt);
    return loss_of_own_scores(detail::linear(x, head.weight, bias), targets, without_bias);
  }
  auto with_bias = options;
  if (head.bias.defined()) with_bias.bias(head.bias);
  return heed::linear_cross_entropy(x.flatten(0, -2), head.weight, targets.flatten(), with_bias);
}

}  // namespace detail

at::Tensor LinearStandIn::loss(const at::Tensor& x, const at::Tensor& targets,
                               const LinearCrossEntropyOptions& loss_options) const {
  return detail::loss_of_own_scores(project(enter(x)), targets, loss_options);
}

at::Tensor EmbeddingStandIn::loss(const at::Tensor& x, const at::Tensor& targets,
                                  const LinearCrossEntropyOptions& loss_options) const {
  return detail::loss_of_own_scores(scores(x), targets, loss_options);
}

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets,
                                const LinearCrossEntropyOptions& options) {
  return detail::compute_loss(
      detail::checked_call(detail::kLinearCrossEntropy, x, weight, targets, options, nullptr));
}

}  // namespace heed
