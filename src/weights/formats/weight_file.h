#pragma once

#include <string>

#include "weights/formats/pytorch_file.h"

namespace heed::detail {

/// What is in a file of any format that `load_weights` reads, told apart by its content.
/// Throws c10::ValueError when it is of none, or not sound.
FileEntries read_weight_file(const std::string& path, const std::string& key);

}  // namespace heed::detail
