// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/export.h>

#include <string_view>

namespace heed {

/// How a call of `attend` is computed; see `attend_path` in attend.h.
///
/// @code
/// auto path = heed::attend_path(query, key, value, heed::AttendOptions().dropout(0.1));
/// std::cout << to_string(path) << '\n';  // block
/// @endcode
enum class AttendPath {
  decode,  ///< heed's CPU kernel for inference with few queries: O(L) memory
  block,   ///< heed's CPU kernel over blocks of queries and keys: O(L + S) memory besides the mask
  fused,  ///< at::scaled_dot_product_attention with one of its kernels: O(L + S) memory besides the
          ///< mask
  flash,  ///< FlashAttention in LibTorch's CUDA library: O(L + S) memory
  efficient,     ///< memory-efficient attention in LibTorch's CUDA library: O(L + S) memory besides
                 ///< the mask
  query_blocks,  ///< LibTorch's operators on some queries at a time: O(S) memory for each of them
  math,          ///< matrix products and a softmax: O(L * S) memory
};

/// Returns the path's name, for logs and benchmarks.
HEED_API std::string_view to_string(AttendPath path);

}  // namespace heed
