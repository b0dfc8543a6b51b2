#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace heed {

/// Tensors by name, as in a file or a module.
///
///     for (const auto& [name, tensor] : heed::read_weights("attention.safetensors")) {
///       std::cout << name << ' ' << tensor.sizes() << '\n';
///     }
using NamedTensors = std::map<std::string, at::Tensor>;

}  // namespace heed
