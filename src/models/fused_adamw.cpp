// SPDX-License-Identifier: BSD-3-Clause
#include <heed/fused_adamw.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Type.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/checks.h"
#include "core/dtypes.h"
#include "core/seen_tensors.h"
#include "core/to_device.h"
#include "models/gradients.h"
#include "models/saved_adamw.h"

namespace heed {

namespace {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;
using ParameterGroups = std::vector<OptimizerParamGroup>;
using ParameterStates = ska::flat_hash_map<void*, std::unique_ptr<OptimizerParamState>>;

constexpr auto kFusedAdamW = "FusedAdamW";
constexpr auto kFusedStep = "FusedAdamW::step";
constexpr auto kFusedStepClipped = "FusedAdamW::step_clipped";
constexpr auto kFusedLoad = "FusedAdamW::load";

/// The elements of gradients in half types that are converted to float32 at the same time: 64 MiB.
/// A larger parameter is converted as a whole.
constexpr int64_t kNumbersInFloat = 1 << 24;

/// The place of a parameter in an optimizer.
struct ParameterPlace {
  size_t parameter, group;

  std::string text() const { return fmt::format("parameter {} of group {}", parameter, group); }
};

// ---- Checks ----

void check_parameter(const char* function, const ParameterPlace& place,
                     const at::Tensor& parameter) {
  HEED_CHECK(parameter.defined(), "{}: {} must be defined", function, place.text());
  HEED_CHECK(detail::is_attention_dtype(parameter.scalar_type()), "{}: dtype ({}) of {} must be {}",
             function, c10::toString(parameter.scalar_type()), place.text(),
             detail::attention_dtypes());
  HEED_CHECK(parameter.layout() == at::kStrided, "{}: layout ({}) of {} must be Strided", function,
             c10::str(parameter.layout()), place.text());
  HEED_CHECK(parameter.is_leaf(), "{}: {} must be a leaf", function, place.text());
  HEED_CHECK(at::has_internal_overlap(parameter) != at::MemOverlap::Yes,
             "{}: elements of {} must not share memory", function, place.text());
}

void check_parameters(const char* function, const ParameterGroups& groups) {
  std::unordered_map<const c10::TensorImpl*, size_t> group_of;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& parameters = groups[i].params();
    for (size_t j = 0; j < parameters.size(); ++j) {
      const ParameterPlace place{j, i};
      check_parameter(function, place, parameters[j]);
      const auto first = group_of.emplace(parameters[j].unsafeGetTensorImpl(), i).first->second;
      HEED_CHECK(first == i, "{}: {} must not be in group {} too", function, place.text(), first);
    }
  }
}

void check_options(const char* function, const std::string& of, const AdamWOptions& options) {
  const auto check_at_least_0 = [&](const char* name, double value) {
    HEED_CHECK(value >= 0.0, "{}: {} ({}){} must be at least 0", function, name, value, of);
  };
  check_at_least_0("lr", options.lr());
  check_at_least_0("eps", options.eps());
  check_at_least_0("weight_decay", options.weight_decay());
  const auto [first, second] = options.betas();
  for (const auto beta : {first, second}) {
    HEED_CHECK(beta >= 0.0 && beta < 1.0, "{}: betas ({}, {}){} must be in [0, 1)", function, first,
               second, of);
  }
}

const AdamWOptions& options_of(const char* function, const ParameterGroups& groups, size_t i) {
  const auto* options =
      groups[i].has_options() ? dynamic_cast<const AdamWOptions*>(&groups[i].options()) : nullptr;
  HEED_CHECK(options != nullptr, "{}: options of group {} must be AdamWOptions", function, i);
  check_options(function, fmt::format(" of group {}", i), *options);
  return *options;
}

/// The groups that a constructor is given, of which some may have no options.
ParameterGroups checked_groups(const ParameterGroups& groups) {
  check_parameters(kFusedAdamW, groups);
  bool has_parameter = false;
  for (size_t i = 0; i < groups.size(); ++i) {
    has_parameter = has_parameter || !groups[i].params().empty();
    if (groups[i].has_options()) options_of(kFusedAdamW, groups, i);
  }
  HEED_CHECK(has_parameter, "{}: parameters must not be empty", kFusedAdamW);
  return groups;
}

void check_state(const char* function, const ParameterPlace& place, const at::Tensor& parameter,
                 const OptimizerParamState& state) {
  const auto* adamw = dynamic_cast<const AdamWParamState*>(&state);
  HEED_CHECK(adamw != nullptr, "{}: state of {} must be that of an AdamW", function, place.text());
  HEED_CHECK(adamw->step() >= 0, "{}: step ({}) of {} must be at least 0", function, adamw->step(),
             place.text());
  const auto check = [&](const char* name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    HEED_CHECK(at::isFloatingType(tensor.scalar_type()), "{}: {} dtype ({}) of {} must be floating",
               function, name, c10::toString(tensor.scalar_type()), place.text());
    HEED_CHECK(tensor.layout() == at::kStrided, "{}: {} layout ({}) of {} must be Strided",
               function, name, c10::str(tensor.layout()), place.text());
    HEED_CHECK(tensor.sizes() == parameter.sizes(), "{}: {} {} of {} must have its shape {}",
               function, name, detail::shape(tensor), place.text(), detail::shape(parameter));
  };
  HEED_CHECK(adamw->exp_avg().defined() && adamw->exp_avg_sq().defined(),
             "{}: state of {} must have exp_avg and exp_avg_sq", function, place.text());
  check("exp_avg", adamw->exp_avg());
  check("exp_avg_sq", adamw->exp_avg_sq());
  check("max_exp_avg_sq", adamw->max_exp_avg_sq());
  const auto* fused = dynamic_cast<const FusedAdamWParamState*>(&state);
  if (fused != nullptr) check("master", fused->master());
}

// ---- A step ----

/// One parameter of a step.
struct ParameterUpdate {
  at::Tensor parameter, gradient;
  const AdamWOptions* options;
  FusedAdamWParamState* state;
  at::Tensor weight;  // the operator updates it: the master, the parameter, or a dense copy of it
};

/// Checks all parameters. Returns those that have a gradient, each once, still without weights and
/// states.
std::vector<ParameterUpdate> checked_updates(const char* function, Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  check_parameters(function, groups);
  std::vector<ParameterUpdate> updates;
  detail::SeenTensors parameters, gradients;
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& options = options_of(function, groups, i);
    for (size_t j = 0; j < groups[i].params().size(); ++j) {
      const auto& parameter = groups[i].params()[j];
      const auto& gradient = parameter.grad();
      if (!gradient.defined() || !parameters.add(parameter)) continue;
      const ParameterPlace place{j, i};
      HEED_CHECK(gradient.layout() == at::kStrided,
                 "{}: gradient layout ({}) of {} must be Strided", function,
                 c10::str(gradient.layout()), place.text());
      detail::check_gradient(function, gradient, [&] { return place.text(); });
      HEED_CHECK(gradient.sizes() == parameter.sizes(),
                 "{}: gradient {} of {} must have its shape {}", function, detail::shape(gradient),
                 place.text(), detail::shape(parameter));
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found != optimizer.state().end() && found->second) {
        check_state(function, place, parameter, *found->second);
      }
      // The operator may divide a gradient in place: two parameters must not share one.
      updates.push_back({parameter, gradients.add(gradient) ? gradient : gradient.clone(), &options,
                         nullptr, at::Tensor()});
    }
  }
  return updates;
}

/// The tensor, or a copy, with the dtype, device and strides of the weight: the operator reads its
/// tensors as they lie in memory.
at::Tensor laid_out_as(const at::Tensor& weight, const at::Tensor& tensor) {
  if (tensor.scalar_type() == weight.scalar_type() && tensor.device() == weight.device() &&
      tensor.strides() == weight.strides()) {
    return tensor;
  }
  return at::empty_like(weight).copy_(tensor);
}

bool have_equal_bytes(const at::Tensor& one, const at::Tensor& other) {
  return one.is_cpu() && one.numel() > 0 && one.strides() == other.strides() &&
         one.is_non_overlapping_and_dense() &&
         std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
}

/// Gives the master those elements of the parameter that are not the nearest to its own: something
/// else has changed them since the last step.
void take_changes(const at::Tensor& master, const at::Tensor& parameter) {
  const auto rounded = master.to(parameter.scalar_type());
  if (have_equal_bytes(rounded, parameter)) return;
  master.copy_(at::where(rounded.eq(parameter), master, parameter.to(master.scalar_type())));
}

/// The master of a parameter, from the one that its state has kept, which may be undefined.
at::Tensor master_of(const at::Tensor& kept, const at::Tensor& parameter) {
  const auto dtype = detail::compute_dtype(parameter.scalar_type());
  if (!kept.defined()) return parameter.detach().to(dtype);
  const bool fits = kept.scalar_type() == dtype && kept.device() == parameter.device() &&
                    kept.is_non_overlapping_and_dense();
  auto master = fits ? kept : at::empty_like(parameter, dtype).copy_(kept);
  take_changes(master, parameter);
  return master;
}

/// A copy of the state that is kept of a parameter: FusedAdamW's, that of torch::optim::AdamW, or
/// null.
FusedAdamWParamState copied_state(const OptimizerParamState* kept) {
  FusedAdamWParamState state;
  if (const auto* fused = dynamic_cast<const FusedAdamWParamState*>(kept)) return *fused;
  if (const auto* plain = dynamic_cast<const AdamWParamState*>(kept)) {
    static_cast<AdamWParamState&>(state) = *plain;
  }
  return state;
}

/// Finds the weight and the state, and lays them out for the operator.
void prepare_update(ParameterUpdate& update, ParameterStates& states) {
  const auto& parameter = update.parameter;
  const auto found = states.find(parameter.unsafeGetTensorImpl());
  auto* kept = found == states.end() ? nullptr : found->second.get();
  auto state = copied_state(kept);
  if (detail::compute_dtype(parameter.scalar_type()) != parameter.scalar_type()) {
    state.master(master_of(state.master(), parameter));
    update.weight = state.master();
  } else {
    state.master(at::Tensor());
    update.weight = parameter.is_non_overlapping_and_dense() ? parameter : parameter.contiguous();
  }
  const auto laid_out = [&](const at::Tensor& tensor) {
    return tensor.defined() ? laid_out_as(update.weight, tensor) : at::zeros_like(update.weight);
  };
  state.exp_avg(laid_out(state.exp_avg()));
  state.exp_avg_sq(laid_out(state.exp_avg_sq()));
  if (update.options->amsgrad()) state.max_exp_avg_sq(laid_out(state.max_exp_avg_sq()));
  update.state = dynamic_cast<FusedAdamWParamState*>(kept);
  if (update.state != nullptr) {
    *update.state = std::move(state);
  } else {
    auto made = std::make_unique<FusedAdamWParamState>(std::move(state));
    update.state = made.get();
    states[parameter.unsafeGetTensorImpl()] = std::move(made);
  }
}

/// Numbers of a step, which may be on another device than the parameters, and may be undefined.
struct GradientScaling {
  at::Tensor scale;     // floating []: the pass divides gradients by it
  at::Tensor overflow;  // float32 []: 1 or 0; if 1, the pass changes no parameter and no state
};

/// One call of the operator: parameters of one device, dtype and group.
class FusedCall {
 public:
  FusedCall(const ParameterUpdate& first, const GradientScaling& scaling)
      : options_(*first.options), device_(first.weight.device()) {
    const auto put = [&](const at::Tensor& number) {
      return number.defined() ? std::optional(detail::to_device(number, device_)) : std::nullopt;
    };
    scale_ = put(scaling.scale);
    overflow_ = put(scaling.overflow);
  }

  void add(const ParameterUpdate& update) {
    const auto& state = *update.state;
    const bool converts = update.gradient.scalar_type() != update.weight.scalar_type();
    const auto numbers = converts ? update.weight.numel() : 0;
    if (numbers_ + numbers > kNumbersInFloat && !weights_.empty()) run();
    numbers_ += numbers;
    weights_.push_back(update.weight);
    gradients_.push_back(laid_out_as(update.weight, update.gradient));
    exp_avgs_.push_back(state.exp_avg());
    exp_avg_sqs_.push_back(state.exp_avg_sq());
    if (options_.amsgrad()) max_exp_avg_sqs_.push_back(state.max_exp_avg_sq());
    auto& step = step_tensors_[state.step() + 1];
    if (!step.defined()) {
      step = at::full({}, state.step() + 1, at::device(device_).dtype(at::kFloat));
    }
    steps_.push_back(step);
    parameters_.push_back(update.parameter);
  }

  void run() {
    auto scale = scale_;
    if (scale && weights_[0].scalar_type() == at::kDouble) {
      // The operator takes its factor in float32.
      for (auto& gradient : gradients_) gradient.div_(*scale);
      scale.reset();
    }
    if (scale) scale = scale->to(at::kFloat);
    const auto [first_beta, second_beta] = options_.betas();
    at::_fused_adamw_(weights_, gradients_, exp_avgs_, exp_avg_sqs_, max_exp_avg_sqs_, steps_,
                      options_.lr(), first_beta, second_beta, options_.weight_decay(),
                      options_.eps(), options_.amsgrad(), /*maximize=*/false, scale, overflow_);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (weights_[i].is_same(parameters_[i])) {
        // The operator does not raise the version, by which a graph that kept the parameter notices
        // the change.
        parameters_[i].unsafeGetTensorImpl()->bump_version();
      } else {
        parameters_[i].copy_(weights_[i]);
      }
    }
    for (auto* list : {&parameters_, &weights_, &gradients_, &exp_avgs_, &exp_avg_sqs_,
                       &max_exp_avg_sqs_, &steps_}) {
      list->clear();
    }
    numbers_ = 0;
  }

 private:
  const AdamWOptions& options_;
  at::Device device_;
  std::optional<at::Tensor> scale_, overflow_;
  std::map<int64_t, at::Tensor> step_tensors_;  // float32 [], on the device
  std::vector<at::Tensor> parameters_, weights_, gradients_, exp_avgs_, exp_avg_sqs_,
      max_exp_avg_sqs_, steps_;
  int64_t numbers_ = 0;  // of gradients that are converted
};

/// Updates the parameters, but does not count the step.
void run_updates(std::vector<ParameterUpdate>& updates, ParameterStates& states,
                 const GradientScaling& scaling) {
  std::vector<at::Tensor> weights;
  for (auto& update : updates) {
    prepare_update(update, states);
    weights.push_back(update.weight);
  }
  for (const auto& places : detail::alike(weights)) {
    for (size_t i = 0; i < places.size();) {
      const auto& first = updates[places[i]];
      FusedCall call(first, scaling);
      for (; i < places.size() && updates[places[i]].options == first.options; ++i) {
        call.add(updates[places[i]]);
      }
      call.run();
    }
  }
}

void count_step(std::vector<ParameterUpdate>& updates) {
  for (auto& update : updates) update.state->step(update.state->step() + 1);
}

}  // namespace

std::unique_ptr<OptimizerParamState> FusedAdamWParamState::clone() const {
  return std::make_unique<FusedAdamWParamState>(*this);
}

void FusedAdamWParamState::serialize(torch::serialize::InputArchive& archive) {
  AdamWParamState::serialize(archive);
  c10::IValue value;
  if (archive.try_read("master", value)) master(value.toTensor());
}

void FusedAdamWParamState::serialize(torch::serialize::OutputArchive& archive) const {
  AdamWParamState::serialize(archive);
  if (master().defined()) archive.write("master", c10::IValue(master()));
}

FusedAdamW::FusedAdamW(std::vector<at::Tensor> parameters, const AdamWOptions& defaults)
    : FusedAdamW({OptimizerParamGroup(std::move(parameters))}, defaults) {}

FusedAdamW::FusedAdamW(const ParameterGroups& groups, const AdamWOptions& defaults)
    : Optimizer(checked_groups(groups), std::make_unique<AdamWOptions>(defaults)) {
  check_options(kFusedAdamW, "", defaults);
}

at::Tensor FusedAdamW::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  auto updates = checked_updates(kFusedStep, *this);
  run_updates(updates, state_, {});
  count_step(updates);
  return loss;
}

double FusedAdamW::step_clipped(double max_norm) {
  detail::check_max_norm(kFusedStepClipped, max_norm);
  const at::NoGradGuard no_grad;
  auto updates = checked_updates(kFusedStepClipped, *this);
  const auto parameters =
      c10::fmap(updates, [](const ParameterUpdate& update) { return update.parameter; });
  const auto norm = detail::norm_of(detail::distinct_gradients(parameters));
  const auto factor = detail::clipping_factor(norm, max_norm);
  GradientScaling scaling;
  if (!(factor >= 1.0)) scaling.scale = at::scalar_tensor(1.0 / factor, at::kDouble);
  run_updates(updates, state_, scaling);
  count_step(updates);
  return norm;
}

/// Divides the gradients by the scale and updates the parameters, unless the overflow, float32 [],
/// is above 0. Returns the overflow, for which the host waits.
float FusedAdamW::step_scaled(const at::Tensor& scale, const at::Tensor& overflow) {
  const at::NoGradGuard no_grad;
  auto updates = checked_updates(kFusedStep, *this);
  run_updates(updates, state_, {scale, overflow.clamp(0.0, 1.0)});
  const auto found = overflow.item<float>();
  if (found <= 0.0F) count_step(updates);
  return found;
}

void FusedAdamW::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdamWParamState, AdamWOptions>(archive, *this);
}

void FusedAdamW::load(torch::serialize::InputArchive& archive) {
  auto saved = detail::read_adamw(archive);
  HEED_CHECK(saved, "{}: archive must hold the state of an AdamW", kFusedLoad);
  HEED_CHECK(saved->options.size() == param_groups_.size(),
             "{}: number of groups ({}) must equal that of the archive ({})", kFusedLoad,
             param_groups_.size(), saved->options.size());
  ParameterStates states;
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    const auto& parameters = param_groups_[i].params();
    const auto& addresses = saved->addresses[i];
    HEED_CHECK(addresses.size() == parameters.size(),
               "{}: number of parameters ({}) of group {} must equal that of the archive ({})",
               kFusedLoad, parameters.size(), i, addresses.size());
    for (size_t j = 0; j < parameters.size(); ++j) {
      const auto found = saved->states.find(addresses[j]);
      // A parameter that stands twice has given its state to its first place.
      if (found == saved->states.end() || !found->second) continue;
      check_state(kFusedLoad, {j, i}, parameters[j], *found->second);
      states[parameters[j].unsafeGetTensorImpl()] = std::move(found->second);
    }
  }
  state_ = std::move(states);
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    param_groups_[i].set_options(std::move(saved->options[i]));
  }
}

}  // namespace heed
