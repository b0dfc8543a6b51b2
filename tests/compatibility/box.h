// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace heed::compatibility {

/// A module that is nothing but tensors and other modules.
class Box : public torch::nn::Module {
 public:
  Box() : torch::nn::Module("Box") {}

  /// Adds tensors by the names NAME.KEY.
  void add(const std::string& name,
           const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
    const auto box = std::make_shared<Box>();
    for (const auto& [key, tensor] : tensors) {
      box->register_buffer(key, tensor.detach().contiguous().clone());
    }
    register_module(name, box);
  }
};

}  // namespace heed::compatibility
