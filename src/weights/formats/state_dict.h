// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "weights/formats/file_entries.h"
#include "weights/formats/pickle.h"
#include "weights/formats/pickled_tensors.h"

namespace heed::detail {

/// Reads the dict of tensors that a pickle describes. `key` is the dotted path to it in a
/// checkpoint's dicts, or empty. Throws c10::ValueError when there is no such dict, or when it is
/// invalid.
FileEntries read_state_dict(const Bytes& bytes, const PickleValue& root, const std::string& key,
                            PickledTensors tensor_of);

}  // namespace heed::detail
