// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/distributed/process_group.h>
#include <heed/export.h>
#include <heed/grad_scaler.h>

namespace heed::distributed {

/// A `GradScaler` for processes whose gradients differ, as after `parallelize`: if a gradient of
/// one process is infinite or NaN, all processes of the group skip the step, and their factors stay
/// equal. After `DataParallel`'s backward pass the gradients are the same in all processes, also
/// with `ZeroRedundancyOptimizer`: there a `GradScaler` is enough.
///
/// @code
/// heed::distributed::ShardedGradScaler scaler(group);
/// scaler.scale(loss).backward();
/// scaler.unscale_(optimizer);
/// heed::distributed::clip_grad_norm_(*model, /*max_norm=*/1.0, group);
/// bool stepped = scaler.step(optimizer);
/// scaler.update();
/// @endcode
///
/// All processes must unscale the same optimizers in the same order. They exchange one number for
/// each.
class HEED_API ShardedGradScaler : public GradScaler {
 public:
  /// Throws c10::ValueError when the group is null or an option is out of its range. `unscale_` and
  /// `step` throw c10::DistError when a process does not answer.
  explicit ShardedGradScaler(ProcessGroup group, const GradScalerOptions& options = {});

 protected:
  void combine(const at::Tensor& overflow) override;

 private:
  ProcessGroup group_;
};

}  // namespace heed::distributed
