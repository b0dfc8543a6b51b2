#pragma once

#include <string>
#include <vector>

#include "weights/formats/file_tensors.h"
#include "weights/shards.h"
#include "weights/translation.h"

/// What the tensors of a module are loaded with.

namespace heed::detail {

/// Adds the copies that load a tensor of the module, in its dtype.
void add_copies(ValueCopies& copies, const Translation& translation, const HeldTensor& to);

/// The tensors to load, each once, although it may have several names. Throws c10::ValueError
/// unless the file has equal values under all of these; `prefix` stands before its names.
std::vector<HeldTensor> each_once(const std::vector<HeldTensor>& loaded,
                                  const Translation& translation, const std::string& path,
                                  const std::string& prefix);

}  // namespace heed::detail
