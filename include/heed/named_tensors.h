#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace heed {

/// Tensors by name, as a file or a module holds them.
using NamedTensors = std::map<std::string, at::Tensor>;

}  // namespace heed
