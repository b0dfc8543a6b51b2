#pragma once

#include <heed/export.h>
#include <heed/tensor_shard.h>
#include <torch/nn/module.h>

#include <map>
#include <string>

namespace heed::distributed::detail {

/// The parameters of which this process holds a part, by their names. Parameters that every process
/// holds whole are missing.
HEED_API std::map<std::string, TensorShard> shards_of(const torch::nn::Module& module);

}  // namespace heed::distributed::detail
