#pragma once

#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>

#include "modules/linear.h"

namespace heed::detail {

constexpr double kInitialDeviation = 0.02;  // GPT-2's

/// Weights of all Linears of `module` from a normal distribution, biases 0.
inline void initialize_linears(torch::nn::Module& module) {
  for (const auto& child : module.modules()) {
    auto* linear = child->as<torch::nn::Linear>();
    if (linear == nullptr) continue;
    initialize(*linear, [](torch::nn::LinearImpl& whole) {
      torch::nn::init::normal_(whole.weight, 0.0, kInitialDeviation);
      if (whole.bias.defined()) torch::nn::init::zeros_(whole.bias);
    });
  }
}

}  // namespace heed::detail
