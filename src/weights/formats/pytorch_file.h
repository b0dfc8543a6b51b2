#pragma once

#include <heed/named_tensors.h>

#include <map>
#include <string>

#include "weights/formats/bytes.h"

namespace heed::detail {

/// What a file holds by name.
struct FileEntries {
  NamedTensors tensors;
  std::map<std::string, std::string> others;  ///< what else is there: "an integer"
};

/// What is in an archive that torch.save, torch.jit.save or C++'s torch::save wrote. `key` is the
/// dotted path to the weights in a checkpoint's dicts, or empty.
FileEntries read_pytorch_file(const Bytes& bytes, const std::string& key);

}  // namespace heed::detail
