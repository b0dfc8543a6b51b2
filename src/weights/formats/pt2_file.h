// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "weights/formats/file_entries.h"
#include "weights/formats/zip_directory.h"

namespace heed::detail {

/// Whether a zip archive is what torch.export.save or AOTInductor wrote.
bool is_pt2(const ZipDirectory& directory);

/// Reads the weights and constants of one model in a PT2 archive; `key` is its name, or empty if
/// there is only one. Programs, compiled code and example inputs are passed over.
FileEntries read_pt2_file(const ZipDirectory& directory, const std::string& key);

}  // namespace heed::detail
