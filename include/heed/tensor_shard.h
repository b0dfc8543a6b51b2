#pragma once

#include <cstdint>

namespace heed {

/// The part of a tensor that a process holds: [first, first + size) of the `whole` numbers of
/// dimension `dim`.
struct TensorShard {
  int64_t dim, first, size, whole;
};

}  // namespace heed
