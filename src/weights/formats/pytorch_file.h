#pragma once

#include <heed/named_tensors.h>

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "weights/formats/bytes.h"
#include "weights/formats/stored_tensor.h"
#include "weights/formats/zip_directory.h"

namespace heed::detail {

/// The contents of a file, by name.
struct FileEntries {
  NamedTensors tensors;
  std::map<std::string, std::string> others;  ///< descriptions of other values: "an integer"
  std::vector<Bytes> files = {};              ///< the files that have been opened
  std::set<std::string> constants = {};       ///< those of `tensors` that a module may do without
  std::set<std::string> unheld = {};          ///< those of `others` that are tensors
  std::map<std::string, std::string> packed = {};  ///< how packed weights are packed, as JSON
};

inline constexpr size_t kMostNames = 300'000;  // in a file; the largest models have some 200,000

/// Adds a tensor or, if heed cannot hold it, its description. Returns whether the name was free.
bool add_tensor(FileEntries& entries, const std::string& name,
                const std::variant<at::Tensor, Unheld>& tensor);

/// Reads an archive that torch.save, torch.jit.save or C++'s torch::save wrote. `key` is the dotted
/// path to the weights in a checkpoint's dicts, or empty.
FileEntries read_pytorch_file(const ZipDirectory& directory, const std::string& key);

/// Reads an archive in which torch.save wrote one tensor. Throws c10::ValueError, beginning with
/// `place`, when the archive is invalid. Does not check that the elements lie in the archive.
std::variant<StoredTensor, Unheld> read_saved_tensor(const ZipDirectory& directory,
                                                     const std::string& place);

}  // namespace heed::detail
