#pragma once

#include <heed/named_tensors.h>

#include <string>

#include "weights/formats/bytes.h"

namespace heed::detail {

/// The tensors of an archive that torch.save, torch.jit.save or C++'s torch::save wrote, in the
/// file's own memory. `key` is the dotted path to them in a checkpoint's dicts, or empty.
NamedTensors read_pytorch_file(const Bytes& bytes, const std::string& key);

}  // namespace heed::detail
