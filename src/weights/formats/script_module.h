#pragma once

#include <heed/named_tensors.h>

#include "weights/formats/archive.h"
#include "weights/formats/pickle.h"

namespace heed::detail {

/// Parameters and buffers of the module that a TorchScript archive holds, without compiling or
/// running the code in it.
NamedTensors read_script_module(const Archive& archive, const PickleValue& module);

}  // namespace heed::detail
