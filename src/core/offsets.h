// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace heed::detail {

/// Throws c10::ValueError unless the tensor is int64 and holds values.
void check_numbers(const char* function, const char* name, const at::Tensor& numbers);

/// Throws c10::ValueError unless offsets are int64 or int32 [N + 1].
void check_offsets_shape(const char* function, const char* name, const at::Tensor& offsets);

/// Returns the N lengths between offsets [N + 1]. Throws c10::ValueError unless the offsets are
/// int64 or int32, begin with 0, never fall and end with `total`.
std::vector<int64_t> checked_lengths(const char* function, const char* name,
                                     const at::Tensor& offsets, int64_t total);

/// The N lengths between N + 1 offsets.
std::vector<int64_t> lengths(const at::Tensor& offsets);

/// The largest of the lengths; 0 if there are none.
inline int64_t longest(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

/// Whether all sequences have the same length. There must be at least one sequence.
inline bool all_equal(const std::vector<int64_t>& lengths) {
  return std::equal(lengths.begin() + 1, lengths.end(), lengths.begin());
}

}  // namespace heed::detail
