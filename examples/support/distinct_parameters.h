// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <unordered_set>
#include <vector>

namespace heed::examples {

/// The parameters of a module, each once. parameters() lists one that layers share once for each of
/// them: an optimizer would make two steps with it, and its gradient would be clipped twice.
inline std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& parameter : module.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace heed::examples
