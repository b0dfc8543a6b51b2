// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/arg.h>
#include <heed/export.h>
#include <torch/arg.h>

#include <cstdint>
#include <map>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace heed {

/// Options of `GradScaler`; the defaults are Python's.
struct HEED_API GradScalerOptions {
  /// The factor at the start. Finite, above 0.
  HEED_NUMBER_ARG(double, init_scale) = 65536.0;
  /// Multiplies the factor after `growth_interval` steps without an overflow. Finite, above 1.
  HEED_NUMBER_ARG(double, growth_factor) = 2.0;
  /// Multiplies the factor after an overflow. In (0, 1).
  HEED_NUMBER_ARG(double, backoff_factor) = 0.5;
  /// How many steps without an overflow, one after the other, make the factor grow. At least 1.
  HEED_NUMBER_ARG(int64_t, growth_interval) = 2000;
  /// If false, `scale` returns the loss, `step` only calls the optimizer, and nothing else happens.
  TORCH_ARG(bool, enabled) = true;
};

/// Scales losses, so that gradients of a training in float16 do not underflow, and the gradients
/// back. It skips a step whose gradients are infinite or NaN, and finds the factor by itself:
/// Python's torch.amp.GradScaler. Micikevicius et al. 2018 (arXiv:1710.03740).
///
/// @code
/// heed::GradScaler scaler;
/// for (int step = 0; step < 10; ++step) {
///   optimizer.zero_grad();
///   scaler.scale(loss_of(model, x)).backward();
///   scaler.unscale_(optimizer);  // only if gradients are clipped or looked at
///   heed::clip_grad_norm_(model->parameters(), 1.0);
///   scaler.step(optimizer);
///   scaler.update();
/// }
/// @endcode
///
/// Parameters stay in float32, and the forward pass runs under `Autocast`; with `FusedAdamW` they
/// may be float16. They may be on several devices. The host waits for the device once in `step`,
/// and where the factor is read or saved. Training in bfloat16 needs no scaling.
class HEED_API GradScaler {
 public:
  /// Throws c10::ValueError when an option is out of its range.
  explicit GradScaler(const GradScalerOptions& options = {});
  virtual ~GradScaler();
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  /// Returns the loss times the factor. The factor lives on the device of the first loss. Scale a
  /// loss of float32: the factor alone is above the largest float16.
  /// Throws c10::ValueError when the loss is undefined or not floating.
  at::Tensor scale(const at::Tensor& loss);

  /// Divides the gradients of the optimizer's parameters by the factor, in place, and notes whether
  /// one of them is infinite or NaN. `step` does it where it has not been done.
  /// Throws c10::ValueError when a gradient is float16 or not floating, and when the gradients have
  /// been divided since the last `update`, or no loss has been scaled. Nothing has changed then.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Calls optimizer.step() unless a gradient is infinite or NaN. Returns whether it did. A
  /// `FusedAdamW` whose gradients have not been divided divides them by itself, in float32, so that
  /// they may be float16.
  /// Throws c10::ValueError as `unscale_` does, when no parameter has a gradient, when it has been
  /// called for this optimizer since the last `update`, and for torch::optim::LBFGS, which computes
  /// gradients in its step.
  bool step(torch::optim::Optimizer& optimizer);

  /// Adjusts the factor. Call it once, after `step` of every optimizer.
  /// Throws c10::ValueError when no gradients have been divided since the last time.
  void update();

  /// The factor; 1 if scaling is not enabled.
  double scale() const;

  /// Writes the factor, the count of steps since it changed, and the options but for init_scale and
  /// enabled; nothing if scaling is not enabled. Call it after `update`, or call torch::save.
  void save(torch::serialize::OutputArchive& archive) const;

  /// Reads what `save` wrote, unless scaling is not enabled.
  /// Throws c10::ValueError when the archive holds no such state. Nothing has changed then.
  void load(torch::serialize::InputArchive& archive);

  /// The options as they were given or loaded.
  const GradScalerOptions& options() const { return options_; }

 protected:
  /// Called by `unscale_` with float32 []: above 0 if a gradient is infinite or NaN, below 0 if
  /// there is no gradient. Processes that train together put the largest of theirs into it.
  virtual void combine(const at::Tensor& overflow);

 private:
  /// The state of an optimizer's gradients since the last `update`.
  struct Unscaled {
    at::Tensor overflow;  // see `combine`; on the factor's device
    bool stepped = false;
  };

  using UnscaledOptimizers = std::map<const torch::optim::Optimizer*, Unscaled>;

  HEED_LOCAL void check_not_stepped(const char* function,
                                    const torch::optim::Optimizer& optimizer) const;
  HEED_LOCAL UnscaledOptimizers find_overflow(const torch::optim::Optimizer& optimizer,
                                              bool in_step);

  GradScalerOptions options_;
  double first_scale_;
  int64_t first_count_ = 0;
  at::Tensor scale_;  // float32 []; undefined before the first loss
  at::Tensor count_;  // int32 []: steps since the factor changed
  UnscaledOptimizers unscaled_;
};

/// `save`, for torch::save.
HEED_API torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                     const GradScaler& scaler);
/// `load`, for torch::load.
HEED_API torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                    GradScaler& scaler);

}  // namespace heed
