// SPDX-License-Identifier: BSD-3-Clause
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

namespace heed::detail {

/// The contents of a file, by name.
struct FileEntries {
  NamedTensors tensors;
  std::map<std::string, std::string> others;  ///< descriptions of other values: "an integer"
  std::vector<Bytes> files = {};              ///< the files that have been opened
  /// Names in `tensors` that a module may do without: constants of a program, and second names.
  std::set<std::string> constants = {};
  std::set<std::string> unheld = {};               ///< those of `others` that are tensors
  std::map<std::string, std::string> packed = {};  ///< how packed weights are packed, as JSON
};

inline constexpr size_t kMostNames = 300'000;  // in a file; the largest models have some 200,000

/// Adds a tensor or, if heed cannot hold it, its description. Returns whether the name was free.
bool add_tensor(FileEntries& entries, const std::string& name,
                const std::variant<at::Tensor, Unheld>& tensor);

/// Adds the names that a file leaves out of tensors that have several, as
/// safetensors.torch.save_model does: `metadata` has them, each with the name in the file.
/// Metadata that means something else is not read.
void add_second_names(FileEntries& entries, const std::map<std::string, std::string>& metadata);

}  // namespace heed::detail
