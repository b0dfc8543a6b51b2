#pragma once

#include <string>

#include "weights/formats/pytorch_file.h"

namespace heed::detail {

/// Reads a file of any format that `load_weights` reads; the content tells the format.
/// Throws c10::ValueError when it has none of these formats, or is invalid.
FileEntries read_weight_file(const std::string& path, const std::string& key);

}  // namespace heed::detail
