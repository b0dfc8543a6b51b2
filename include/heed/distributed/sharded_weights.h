// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/distributed/process_group.h>
#include <heed/export.h>
#include <heed/weights.h>
#include <torch/nn/module.h>

#include <string>

namespace heed::distributed {

/// Loads a file into a module that is spread over the processes of `group`, as by `parallelize`
/// or `parallelize_experts`. Each process reads only its own rows, columns or experts from the
/// file.
///
/// @code
/// heed::distributed::parallelize(*model, group);
/// heed::distributed::load_weights(*model, "model.safetensors", group);
/// heed::distributed::save_weights(*model, "model.safetensors", group);
/// @endcode
///
/// `options.shards` names other tensors of which this process has a part. All tensors that are
/// neither in it nor split by these functions must be whole in every process. The file may have
/// been saved by one process, or by any number of processes. Formats and name maps are those of
/// heed::load_weights.
///
/// Throws c10::ValueError in every process if it throws in one: the error names the first such
/// process. The modules of all processes are unchanged then, except when a file is cut short or a
/// disk fails while values are being read. Throws c10::DistError if a process does not answer.
HEED_API LoadReport load_weights(torch::nn::Module& module, const std::string& path,
                                 const ProcessGroup& group, const LoadOptions& options = {});

/// Writes the file that one process would write with heed::save_weights if it had the whole module,
/// bit for bit. Where several processes have the same rows or columns, or a whole tensor, the
/// values of the lowest rank are written.
///
/// Rank 0 writes to its `path`. It holds one tensor of the file at a time, not the whole module.
/// The file is written completely or not at all, as by heed::save_weights. Every process returns
/// when it is in place.
///
/// Throws c10::ValueError in every process, and leaves an existing file as it was, when tensors or
/// shards of the processes do not fit together, when the file cannot be written, when the name map
/// cannot be inverted, when weights are packed and split, or when options.format() is torchscript,
/// which needs the whole module in one process. Throws c10::DistError if a process does not answer.
HEED_API void save_weights(const torch::nn::Module& module, const std::string& path,
                           const ProcessGroup& group, const SaveOptions& options = {});

/// Like `save_weights` above, for a module of which this process has the parts that `shards`
/// names, besides those of `parallelize`. Together, the processes must have every row or column.
HEED_API void save_weights(const torch::nn::Module& module, const std::string& path,
                           const ProcessGroup& group, const TensorShards& shards,
                           const SaveOptions& options = {});

}  // namespace heed::distributed
