#pragma once

#include <heed/export.h>

#include <string_view>

namespace heed {

/// How a call of `attend` is computed; see `attend_path` in attend.h.
enum class AttendPath {
  decode,  ///< our CPU kernel for inference with few queries: O(L) memory
  fused,   ///< LibTorch's fused kernel: O(L + S) memory beside the mask
  block,   ///< our CPU kernel over blocks of queries and keys: O(L + S) memory beside the mask
  math,    ///< matrix products and a softmax: O(L * S) memory
};

/// The path's name, for logs and benchmarks.
HEED_API std::string_view to_string(AttendPath path);

}  // namespace heed
