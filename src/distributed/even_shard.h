// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/distributed/process_group.h>
#include <heed/tensor_shard.h>

#include "core/error.h"

namespace heed::distributed::detail {

/// This process's part of `whole` numbers of dimension `dim`, in the order of the ranks. Throws if
/// they cannot be split evenly.
inline TensorShard even_shard(const char* function, const char* name, int64_t whole, int64_t dim,
                              const ProcessGroup& group) {
  HEED_CHECK(group, "{}: group must not be null", function);
  const int64_t parts = group->getSize();
  HEED_CHECK(whole % parts == 0, "{}: {} ({}) must be a multiple of the number of processes ({})",
             function, name, whole, parts);
  const auto size = whole / parts;
  return {dim, group->getRank() * size, size, whole};
}

}  // namespace heed::distributed::detail
