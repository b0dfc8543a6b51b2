#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace heed {

/// Tensors by name, as in a file or a module.
///
/// @code
/// heed::NamedTensors tensors = heed::read_weights("attention.safetensors");
/// std::cout << tensors.at("fc_q.weight").sizes() << '\n';
/// @endcode
using NamedTensors = std::map<std::string, at::Tensor>;

}  // namespace heed
