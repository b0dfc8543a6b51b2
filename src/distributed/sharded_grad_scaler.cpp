// SPDX-License-Identifier: BSD-3-Clause
#include <heed/distributed/sharded_grad_scaler.h>

#include <utility>

#include "distributed/collectives.h"

namespace heed::distributed {

ShardedGradScaler::ShardedGradScaler(ProcessGroup group, const GradScalerOptions& options)
    : GradScaler(options), group_(std::move(group)) {
  HEED_CHECK(group_, "ShardedGradScaler: group must not be null");
}

void ShardedGradScaler::combine(const at::Tensor& overflow) {
  detail::all_reduce_max(group_, "ShardedGradScaler: reduction of overflows", overflow);
}

}  // namespace heed::distributed
