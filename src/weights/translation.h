#pragma once

#include <heed/name_maps.h>

#include <map>
#include <string>
#include <vector>

namespace heed::detail {

/// The result of `translate` for a file.
struct Translation {
  NamedTensors tensors;                                     // by names in the module
  std::map<std::string, std::vector<std::string>> origins;  // by the same: names in the file
};

/// A matrix of the layout that Conv1D of GPT-2 has; a bias as it is.
inline at::Tensor transposed(const at::Tensor& tensor) {
  return tensor.dim() == 2 ? tensor.t() : tensor;
}

}  // namespace heed::detail
