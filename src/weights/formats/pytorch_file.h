#pragma once

#include <heed/named_tensors.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "weights/formats/bytes.h"
#include "weights/formats/stored_tensor.h"
#include "weights/formats/zip_directory.h"

namespace heed::detail {

/// The contents of a file, by name.
struct FileEntries {
  NamedTensors tensors;
  std::map<std::string, std::string> others;  ///< what else the file has: "an integer"
  std::vector<Bytes> files = {};              ///< which have been opened
  std::set<std::string> constants = {};       ///< those of `tensors` that a module may do without
};

/// Reads an archive that torch.save, torch.jit.save or C++'s torch::save wrote. `key` is the dotted
/// path to the weights in a checkpoint's dicts, or empty.
FileEntries read_pytorch_file(const ZipDirectory& directory, const std::string& key);

/// Reads an archive that torch.save wrote of one tensor. Throws c10::ValueError, beginning with
/// `place`, unless it is one; whether its elements lie in the archive is not checked.
StoredTensor read_saved_tensor(const ZipDirectory& directory, const std::string& place);

}  // namespace heed::detail
