#pragma once

#include <heed/named_tensors.h>

#include "weights/formats/archive.h"
#include "weights/formats/pickle.h"

namespace heed::detail {

/// Reads the parameters and buffers of the module in a TorchScript archive, without compiling or
/// running the archive's code.
NamedTensors read_script_module(const Archive& archive, const PickleValue& module);

}  // namespace heed::detail
