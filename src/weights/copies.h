// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "weights/formats/file_tensors.h"
#include "weights/shards.h"
#include "weights/translation.h"

/// Copies of a file's values into the tensors of a module.

namespace heed::detail {

/// Adds the copies that load `to`, a tensor of the module, in its dtype.
void add_copies(ValueCopies& copies, const Translation& translation, const HeldTensor& to);

/// Returns the tensors `loaded`, those with several names only once. Throws c10::ValueError unless
/// the file has equal values under all of these names; `prefix` stands before its names, and errors
/// call it `source`.
std::vector<HeldTensor> each_once(const std::vector<HeldTensor>& loaded,
                                  const Translation& translation, const std::string& source,
                                  const std::string& prefix);

}  // namespace heed::detail
