// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/weights.h>

#include <functional>
#include <string>
#include <vector>

#include "weights/formats/weight_file.h"
#include "weights/shards.h"
#include "weights/translation.h"

namespace heed::detail {

/// Gives the file's tensors `theirs` the names of the module's tensors, by the name map. Leaves
/// out buffers that the module computes. Throws c10::ValueError if the map does not fit.
Translation translated(const torch::nn::Module& module, const std::vector<HeldTensor>& ours,
                       const FileEntries& theirs, const LoadOptions& options);

/// The tensors of a module and of a file. The constructor checks the options before it calls
/// `read`, which returns what the file holds.
struct Contents {
  Contents(const torch::nn::Module& module, const LoadOptions& options,
           const std::function<FileEntries()>& read);

  std::vector<HeldTensor> ours;
  FileEntries theirs;  // names without LoadOptions::prefix
};

}  // namespace heed::detail
