#pragma once

#include <heed/named_tensors.h>

#include <map>
#include <string>
#include <vector>

#include "weights/formats/bytes.h"

namespace heed::detail {

/// The contents of a file, by name.
struct FileEntries {
  NamedTensors tensors;
  std::map<std::string, std::string> others;  ///< what else the file has: "an integer"
  std::vector<Bytes> files = {};              ///< which have been opened
};

/// Reads an archive that torch.save, torch.jit.save or C++'s torch::save wrote. `key` is the dotted
/// path to the weights in a checkpoint's dicts, or empty.
FileEntries read_pytorch_file(const Bytes& bytes, const std::string& key);

}  // namespace heed::detail
