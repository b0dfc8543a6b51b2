// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "weights/formats/bytes.h"
#include "weights/formats/file_entries.h"

namespace heed::detail {

/// Whether a file begins like JSON.
bool is_weight_index(std::string_view file);

/// The tensors of a model in several files, shards. The index says which shard has which tensor:
/// {"weight_map": {"fc_q.weight": "model-00001-of-00002.safetensors", ...}}. `read` returns the
/// entries of the file with this name, which is never a path.
FileEntries read_weight_index(const Bytes& index,
                              const std::function<FileEntries(const std::string&)>& read);

}  // namespace heed::detail
