#pragma once

#include <heed/weights.h>

#include <functional>
#include <string>
#include <vector>

#include "weights/formats/weight_file.h"
#include "weights/shards.h"
#include "weights/translation.h"

namespace heed::detail {

/// A file's tensors under the names of the module's.
Translation translated(const torch::nn::Module& module, const std::vector<HeldTensor>& ours,
                       const FileEntries& theirs, const LoadOptions& options);

/// What a module and a file hold. The constructor checks the options before it calls `read`, which
/// returns what the file holds.
struct Contents {
  Contents(const torch::nn::Module& module, const std::string& path, const LoadOptions& options,
           const std::function<FileEntries()>& read);

  std::vector<HeldTensor> ours;
  FileEntries theirs;       // without LoadOptions::prefix
  Translation translation;  // of theirs
};

}  // namespace heed::detail
