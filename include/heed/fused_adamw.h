// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>
#include <torch/arg.h>
#include <torch/optim/adamw.h>

#include <memory>
#include <vector>

namespace heed {

/// The state that `FusedAdamW` keeps of a parameter: that of torch::optim::AdamW, and a master.
struct HEED_API FusedAdamWParamState : torch::optim::AdamWParamState {
  /// The parameter in float32, if the parameter is bfloat16 or half; undefined otherwise.
  TORCH_ARG(at::Tensor, master);

 public:
  /// A copy that shares the tensors.
  std::unique_ptr<torch::optim::OptimizerParamState> clone() const override;
  /// Reads the state; the master is undefined if the archive has none.
  void serialize(torch::serialize::InputArchive& archive) override;
  /// Writes the state, and the master if it is defined.
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// AdamW that updates all parameters of a group by one operator of LibTorch, which reads and writes
/// each number once; torch::optim::AdamW takes about four times as long. Loshchilov and Hutter 2019
/// (arXiv:1711.05101).
///
/// @code
/// heed::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
/// for (int step = 0; step < 10; ++step) {
///   optimizer.zero_grad();
///   loss_of(model, x).backward();
///   optimizer.step_clipped(/*max_norm=*/1.0);  // or step()
/// }
/// @endcode
///
/// It takes the place of torch::optim::AdamW: with the same options, groups and schedulers it gives
/// the same numbers but for rounding. Parameters without a gradient are passed over. A parameter
/// that stands twice in a group, as in `parameters()` of modules that share a layer, is updated
/// once. A gradient that has another dtype than its parameter is converted to that of the state.
///
/// Parameters of bfloat16 and half have masters in float32, and their state is float32 too: steps
/// that are too small for the parameter's dtype add up in the master, of which the parameter is the
/// nearest number. An element of the parameter that something else has changed since the last step,
/// such as `load_weights`, is taken over by the master in the next step.
///
/// torch::save writes a file that torch::optim::AdamW can load, which passes over the masters;
/// torch::load reads the files of both.
class HEED_API FusedAdamW : public torch::optim::Optimizer {
 public:
  /// An optimizer of these parameters, which must be leaves of Float, Double, BFloat16 or Half.
  /// Throws c10::ValueError when there is none, when one is something else or in two groups, and
  /// when an option is out of its range.
  explicit FusedAdamW(std::vector<at::Tensor> parameters,
                      const torch::optim::AdamWOptions& defaults = {});
  /// Like the constructor above, with groups that may have options of their own.
  explicit FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                      const torch::optim::AdamWOptions& defaults = {});

  /// Updates the parameters. Returns what `closure` returns, which is called before if it is given.
  /// Parameters with NaN in their gradients become NaN there.
  /// Throws c10::ValueError when a parameter, its gradient or its state does not fit, such as a
  /// gradient that is sparse or not floating: the parameters are as they were then.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Limits the norm of all gradients together and updates the parameters: like `clip_grad_norm_`
  /// and `step`, but the pass that updates the parameters also multiplies the gradients. Returns
  /// the norm. Whether the gradients have been multiplied afterwards depends on their dtype and
  /// memory layout.
  /// Throws c10::ValueError when max_norm is not above 0, and as `step` does.
  double step_clipped(double max_norm);

  /// Writes the options of the groups and the state of each parameter, with its master.
  void save(torch::serialize::OutputArchive& archive) const override;

  /// Reads what `save` or torch::optim::AdamW wrote, in place of the state and options before.
  /// Throws c10::ValueError when the archive holds something else, other groups or other shapes.
  /// Nothing has changed then.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  friend class GradScaler;

  HEED_LOCAL float step_scaled(const at::Tensor& scale, const at::Tensor& overflow);
};

}  // namespace heed
