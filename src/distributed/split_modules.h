// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// Functions that look at a module before it is split among processes.

namespace heed::distributed::detail {

struct Submodule {
  std::string name;
  torch::nn::Module* module;
  std::shared_ptr<torch::nn::Module> owner;  // null for the outermost
};

/// The module and its submodules, each once.
std::vector<Submodule> submodules_of(torch::nn::Module& module);

/// The sum of the tensor's bits, as integers. Different tensors almost always have different sums.
int64_t checksum(const at::Tensor& tensor);

/// Describes, line by line, all that must be equal in all processes.
std::string description(torch::nn::Module& module);

}  // namespace heed::distributed::detail
