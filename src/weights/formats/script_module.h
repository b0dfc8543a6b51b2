// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "weights/formats/archive.h"
#include "weights/formats/file_entries.h"
#include "weights/formats/pickle.h"

namespace heed::detail {

/// Reads the tensors of the module in a TorchScript archive, without compiling or running the
/// archive's code: parameters, buffers and, as constants, other attributes, those in lists, tuples
/// and dicts ("pair.0", "tables.sin"), and those of the code ("CONSTANTS.c0").
FileEntries read_script_module(const Archive& archive, const PickleValue& module);

}  // namespace heed::detail
