// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <heed/fused_adamw.h>
#include <heed/grad_scaler.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <vector>

#include "core/checks.h"
#include "core/seen_tensors.h"
#include "core/to_device.h"
#include "models/gradients.h"

namespace heed {

namespace {

using torch::optim::Optimizer;

constexpr auto kScaler = "GradScaler";
constexpr auto kScale = "GradScaler::scale";
constexpr auto kUnscale = "GradScaler::unscale_";
constexpr auto kStep = "GradScaler::step";
constexpr auto kUpdate = "GradScaler::update";
constexpr auto kLoad = "GradScaler::load";

bool is_positive(double number) { return std::isfinite(number) && number > 0.0; }

void check_factors(const char* function, const char* name, double scale, double growth_factor,
                   double backoff_factor, int64_t growth_interval) {
  HEED_CHECK(is_positive(static_cast<float>(scale)),
             "{}: {} ({}) must be finite and above 0 in Float", function, name, scale);
  HEED_CHECK(std::isfinite(growth_factor) && growth_factor > 1.0,
             "{}: growth_factor ({}) must be finite and above 1", function, growth_factor);
  HEED_CHECK(backoff_factor > 0.0 && backoff_factor < 1.0,
             "{}: backoff_factor ({}) must be above 0 and below 1", function, backoff_factor);
  detail::check_positive(function, "growth_interval", growth_interval);
}

/// The gradients of all parameters, each once. Half ones only the optimizer itself can unscale.
std::vector<at::Tensor> gradients_of(const Optimizer& optimizer, bool may_be_half) {
  std::vector<at::Tensor> gradients;
  detail::SeenTensors seen;
  const auto& groups = optimizer.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& parameters = groups[i].params();
    for (size_t j = 0; j < parameters.size(); ++j) {
      const auto& gradient = parameters[j].grad();
      if (!gradient.defined()) continue;
      detail::check_changed_gradient(kUnscale, gradient,
                                     [&] { return fmt::format("parameter {} of group {}", j, i); });
      HEED_CHECK(may_be_half || gradient.scalar_type() != at::kHalf,
                 "{}: gradient dtype (Half) of parameter {} of group {} must not be Half: keep "
                 "parameters in Float and use Autocast",
                 kUnscale, j, i);
      if (!seen.add(gradient)) continue;
      gradients.push_back(gradient.is_sparse() ? gradient._values() : gradient);
    }
  }
  return gradients;
}

/// Gradients of one device and dtype, which one operator takes together.
struct GradientGroup {
  std::vector<at::Tensor> tensors;
  at::Tensor inverse, overflow;  // float32 [], on the gradients' device
};

/// Sets `overflow` to 1 if a gradient is infinite or NaN, and multiplies the gradients by
/// `inverse`.
void unscale(GradientGroup& group) {
  const auto& first = group.tensors.front();
  if (!first.is_cuda() || first.scalar_type() != at::kBFloat16) {
    at::_amp_foreach_non_finite_check_and_unscale_(group.tensors, group.overflow, group.inverse);
    return;
  }
  // On CUDA, LibTorch's operator takes no bfloat16.
  for (auto& gradient : group.tensors) {
    const auto is_finite = at::isfinite(gradient).all();
    group.overflow.masked_fill_(is_finite.bitwise_not(), 1.0);
    gradient.mul_(group.inverse);
  }
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), first_scale_(options.init_scale()) {
  check_factors(kScaler, "init_scale", options.init_scale(), options.growth_factor(),
                options.backoff_factor(), options.growth_interval());
}

GradScaler::~GradScaler() = default;

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!options_.enabled()) return loss;
  HEED_CHECK(loss.defined(), "{}: loss must be defined", kScale);
  HEED_CHECK(at::isFloatingType(loss.scalar_type()), "{}: loss dtype ({}) must be floating", kScale,
             c10::toString(loss.scalar_type()));
  if (!scale_.defined()) {
    const auto on_device = at::device(loss.device());
    count_ = at::full({}, first_count_, on_device.dtype(at::kInt));
    scale_ = at::full({}, first_scale_, on_device.dtype(at::kFloat));
  }
  return loss * detail::to_device(scale_, loss.device());
}

void GradScaler::check_not_stepped(const char* function, const Optimizer& optimizer) const {
  HEED_CHECK(scale_.defined(), "{}: a loss must be scaled before", function);
  const auto found = unscaled_.find(&optimizer);
  HEED_CHECK(found == unscaled_.end() || !found->second.stepped,
             "{}: step has been called for this optimizer since the last update", function);
}

void GradScaler::combine(const at::Tensor& /*overflow*/) {}

/// Finds whether a gradient is infinite or NaN, and divides the gradients unless the optimizer does
/// so in its step.
GradScaler::UnscaledOptimizers GradScaler::find_overflow(const Optimizer& optimizer, bool in_step) {
  const auto gradients = gradients_of(optimizer, /*may_be_half=*/in_step);
  const at::NoGradGuard no_grad;
  const auto inverse =
      in_step ? at::ones_like(scale_) : scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  std::vector<GradientGroup> groups;
  for (const auto& places : detail::alike(gradients)) {
    const auto device = gradients[places[0]].device();
    groups.push_back({detail::at_places(gradients, places), detail::to_device(inverse, device),
                      at::full({}, 0.0, scale_.options().device(device))});
  }
  const auto overflow = at::full({}, groups.empty() ? -1.0 : 0.0, scale_.options());
  UnscaledOptimizers unscaled = {{&optimizer, {overflow}}};
  for (auto& group : groups) unscale(group);
  for (const auto& group : groups) {
    overflow.add_(detail::to_device(group.overflow, scale_.device()));
  }
  combine(overflow);
  return unscaled;
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled()) return;
  check_not_stepped(kUnscale, optimizer);
  HEED_CHECK(unscaled_.count(&optimizer) == 0,
             "{}: it has been called for this optimizer since the last update", kUnscale);
  unscaled_.merge(find_overflow(optimizer, /*in_step=*/false));
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled()) {
    optimizer.step();
    return true;
  }
  HEED_CHECK(dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr,
             "{}: optimizer (LBFGS) must not compute gradients in its step", kStep);
  check_not_stepped(kStep, optimizer);
  const bool is_unscaled = unscaled_.count(&optimizer) != 0;
  auto* fused = is_unscaled ? nullptr : dynamic_cast<FusedAdamW*>(&optimizer);
  float overflow = 0.0F;
  if (fused != nullptr) {
    auto unscaled = find_overflow(optimizer, /*in_step=*/true);
    overflow = fused->step_scaled(scale_, unscaled.begin()->second.overflow);
    unscaled_.merge(unscaled);
  } else {
    if (!is_unscaled) unscale_(optimizer);
    overflow = unscaled_[&optimizer].overflow.item<float>();
  }
  if (overflow < 0.0F) unscaled_.erase(&optimizer);
  HEED_CHECK(overflow >= 0.0F, "{}: no parameter of the optimizer has a gradient", kStep);
  if (overflow == 0.0F && fused == nullptr) optimizer.step();
  unscaled_[&optimizer].stepped = true;
  return overflow == 0.0F;
}

void GradScaler::update() {
  if (!options_.enabled()) return;
  HEED_CHECK(!unscaled_.empty(), "{}: no gradients have been unscaled since the last update",
             kUpdate);
  const at::NoGradGuard no_grad;
  const auto overflow = at::full({}, 0.0, scale_.options());
  for (const auto& [optimizer, unscaled] : unscaled_) {
    overflow.add_(unscaled.overflow.clamp_min(0.0));
  }
  at::_amp_update_scale_(scale_, count_, overflow, options_.growth_factor(),
                         options_.backoff_factor(), options_.growth_interval());
  unscaled_.clear();
}

double GradScaler::scale() const {
  if (!options_.enabled()) return 1.0;
  return scale_.defined() ? scale_.item<float>() : first_scale_;
}

void GradScaler::save(torch::serialize::OutputArchive& archive) const {
  if (!options_.enabled()) return;
  archive.write("scale", c10::IValue(scale()));
  archive.write("growth_factor", c10::IValue(options_.growth_factor()));
  archive.write("backoff_factor", c10::IValue(options_.backoff_factor()));
  archive.write("growth_interval", c10::IValue(options_.growth_interval()));
  archive.write("count", c10::IValue(count_.defined() ? count_.item<int64_t>() : first_count_));
}

void GradScaler::load(torch::serialize::InputArchive& archive) {
  if (!options_.enabled()) return;
  const auto read = [&](const char* name, bool (c10::IValue::*is)() const) {
    c10::IValue value;
    HEED_CHECK(archive.try_read(name, value) && (value.*is)(),
               "{}: archive must hold {} of a GradScaler that is enabled", kLoad, name);
    return value;
  };
  const auto number = [&](const char* name) {
    return read(name, &c10::IValue::isDouble).toDouble();
  };
  const auto count_of = [&](const char* name) { return read(name, &c10::IValue::isInt).toInt(); };
  const auto scale = number("scale"), growth_factor = number("growth_factor");
  const auto backoff_factor = number("backoff_factor");
  const auto growth_interval = count_of("growth_interval"), count = count_of("count");
  check_factors(kLoad, "scale", scale, growth_factor, backoff_factor, growth_interval);
  detail::check_not_negative(kLoad, "count", count);
  first_scale_ = scale;
  first_count_ = count;
  options_.growth_factor(growth_factor).backoff_factor(backoff_factor);
  options_.growth_interval(growth_interval);
  scale_.reset();  // made anew for the next loss
  count_.reset();
  unscaled_.clear();
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const GradScaler& scaler) {
  scaler.save(archive);
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           GradScaler& scaler) {
  scaler.load(archive);
  return archive;
}

}  // namespace heed
