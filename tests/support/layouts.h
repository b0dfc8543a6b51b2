// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace heed::test {

/// How a tensor lies in memory.
enum Layout : int64_t {
  kContiguous,
  kHeadsLast,        // as modules split heads: dims -3 and -2 swapped
  kReversed,         // dims in the reverse order
  kEverySecond,      // every second element of memory twice as wide
  kInner,            // the inner part of memory that is larger on every side
  kRepeatedBatch,    // stride 0 in the first dim
  kRepeatedElement,  // stride 0 in every dim
  kRepeatedRows,     // stride 0 in dim -2
  kOverlapping,      // stride 1 in every dim
  kUnaligned,        // from the second element of its storage on
  kNegative,         // with the negative bit, or the conjugate bit where complex
  kLayouts,
};

/// The values of `dense` in another layout; where memory is shared by several, some of them again
/// and again.
at::Tensor lay_out(const at::Tensor& dense, int64_t layout);

}  // namespace heed::test
