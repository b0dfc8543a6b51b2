// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <variant>

#include "weights/formats/file_entries.h"
#include "weights/formats/stored_tensor.h"
#include "weights/formats/zip_directory.h"

namespace heed::detail {

/// Reads an archive that torch.save, torch.jit.save or C++'s torch::save wrote. `key` is the dotted
/// path to the weights in a checkpoint's dicts, or empty.
FileEntries read_pytorch_file(const ZipDirectory& directory, const std::string& key);

/// Reads an archive in which torch.save wrote one tensor. Throws c10::ValueError, beginning with
/// `place`, when the archive is invalid. Does not check that the elements lie in the archive.
std::variant<StoredTensor, Unheld> read_saved_tensor(const ZipDirectory& directory,
                                                     const std::string& place);

}  // namespace heed::detail
