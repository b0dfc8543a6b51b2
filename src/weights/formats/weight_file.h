#pragma once

#include <heed/named_tensors.h>

#include <string>

#include "weights/formats/bytes.h"

namespace heed::detail {

/// The tensors of a file of any format that `load_weights` reads, told apart by its content.
/// Throws c10::ValueError when it is of none, or not sound.
NamedTensors read_weight_file(const std::string& path, const std::string& key);

}  // namespace heed::detail
