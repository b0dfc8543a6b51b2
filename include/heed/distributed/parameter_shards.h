// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/distributed/process_group.h>
#include <heed/export.h>
#include <heed/weights.h>
#include <torch/nn/module.h>

namespace heed::distributed {

/// Returns the parameters of which this process holds a part after `parallelize` or
/// `parallelize_experts`, by their names; a part of size 0 for experts of other processes.
/// Parameters that every process holds whole are missing.
HEED_API TensorShards shards_of(const torch::nn::Module& module);

/// Returns the whole tensor, in every process, of the parts that the processes of `group` hold: of
/// a parameter, or of what an optimizer keeps for it. All must call it.
///
/// @code
/// auto shards = heed::distributed::shards_of(*model);
/// for (auto& parameter : model->named_parameters()) {
///   auto shard = shards.find(parameter.key());
///   if (shard == shards.end()) continue;  // whole in every process
///   auto whole = heed::distributed::gather_shards(parameter.value(), shard->second, group);
/// }
/// @endcode
///
/// Throws c10::ValueError when the part has not the size of the shard; c10::DistError when a
/// process does not answer.
HEED_API at::Tensor gather_shards(const at::Tensor& part, const TensorShard& shard,
                                  const ProcessGroup& group);

/// Like heed::clip_grad_norm_, for a module that `parallelize` or `parallelize_experts` has split
/// among the processes of `group`: the norm is that of the gradients of the whole module. All
/// processes must call it. Returns the norm.
///
/// @code
/// heed::distributed::clip_grad_norm_(*model, /*max_norm=*/1.0, group);
/// @endcode
///
/// Throws c10::ValueError when max_norm is not above 0, and in all processes when a gradient of one
/// is not floating; c10::DistError when a process does not answer.
HEED_API double clip_grad_norm_(torch::nn::Module& module, double max_norm,
                                const ProcessGroup& group);

}  // namespace heed::distributed
