// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/name_maps.h>
#include <torch/nn/module.h>

#include <set>
#include <string>

namespace heed::detail {

/// The tensors of a module that a weight file has: its parameters, and its buffers except
/// `computed_buffers`. In the order of their registration, parameters first.
ModuleTensors weights_of(const torch::nn::Module& module);

/// Throws c10::ValueError, beginning with `function`, unless the tensor is defined and strided and
/// its values are in memory.
void check_holds_values(const char* function, const std::string& name, const at::Tensor& tensor);

/// The names of buffers that are computed from the options of heed's modules.
std::set<std::string> computed_buffers(const torch::nn::Module& module);

}  // namespace heed::detail
