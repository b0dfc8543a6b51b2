// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/heed.h>
#include <torch/optim/adamw.h>

/// A training as programs of 0.2 write it, of which files/0.2/training has the state.
namespace heed::compatibility {

inline torch::optim::AdamWOptions training_options() {
  return torch::optim::AdamWOptions(0.01).weight_decay(0.1);
}

/// A step of a module to whose input x its output shall become equal.
template <typename Module>
void train_step(Module& module, torch::optim::Optimizer& optimizer, GradScaler& scaler,
                const at::Tensor& x) {
  optimizer.zero_grad();
  scaler.scale((module->forward(x) - x).square().mean()).backward();
  scaler.step(optimizer);
  scaler.update();
}

}  // namespace heed::compatibility
