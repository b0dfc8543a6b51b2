#pragma once

#include <torch/nn/module.h>

#include <string>

namespace heed::detail {

/// In the order of their registration, parameters first.
using ModuleTensors = torch::OrderedDict<std::string, at::Tensor>;

/// What a weight file holds of a module.
inline ModuleTensors parameters_and_buffers(const torch::nn::Module& module) {
  auto tensors = module.named_parameters();
  tensors.update(module.named_buffers());
  return tensors;
}

}  // namespace heed::detail
