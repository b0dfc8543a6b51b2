// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

#include "weights/formats/file_entries.h"

namespace heed::detail {

/// Whether bytes with this start may hold weights, and not only the names of files that do.
bool holds_weights(std::string_view start);

/// Reads a file of any format that `load_weights` reads; the content tells the format.
/// Throws c10::ValueError when it has none of these formats, or is invalid.
FileEntries read_weight_file(const Bytes& bytes, const std::string& key);

/// The origin of a file's entries as errors name it: that of the index, if there are several files.
inline std::string source_of(const FileEntries& file) { return file.files.front().source(); }

}  // namespace heed::detail
