// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>
#include <vector>

#include "models/adapters/linear_places.h"
#include "modules/layers/lora_linear.h"

namespace heed::detail {

/// The adapter that a Linear gets.
struct NewAdapter {
  LinearPlace place;
  LoraParameters parameters;
  LoraSettings settings;
};

/// Throws c10::ValueError if the module has an adapter already, or a mixture whose experts are
/// split among processes.
void check_takes_adapter(const torch::nn::Module& module);

/// Throws c10::ValueError unless the Linear `name` is LibTorch's own, with a weight of floats.
void check_adaptable(const std::string& name, const LinearPlace& place);

/// Puts the adapters into their places, and lets only them and `trained` require gradients.
void install(torch::nn::Module& module, const std::vector<NewAdapter>& adapters,
             const std::vector<at::Tensor>& trained);

/// The dtype of an adapter's parameters beside a weight.
at::ScalarType adapter_dtype(const at::Tensor& weight);

}  // namespace heed::detail
