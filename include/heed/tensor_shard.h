// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace heed {

/// The part of a tensor that a process holds: [first, first + size) of the `whole` numbers of
/// dimension `dim`.
struct TensorShard {
  int64_t dim;    ///< the dimension that is split
  int64_t first;  ///< where the part begins
  int64_t size;   ///< of the part
  int64_t whole;  ///< size of the whole tensor in that dimension
};

}  // namespace heed
