// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <memory>
#include <optional>
#include <vector>

namespace heed::detail {

/// The contents of an archive of a FusedAdamW or a torch::optim::AdamW.
struct SavedAdamW {
  /// By the addresses that the parameters had.
  ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>> states;
  std::vector<std::vector<void*>> addresses;  // of the parameters of each group
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;  // of each group
};

/// Reads such an archive; nullopt if it is something else.
std::optional<SavedAdamW> read_adamw(torch::serialize::InputArchive& archive);

}  // namespace heed::detail
