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

}  // namespace heed::detail
