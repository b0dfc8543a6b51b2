#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>

namespace heed::detail {

/// Attention of sequences that are padded at their end: sequence b has query_lengths[b] queries and
/// key_lengths[b] keys, int64 [B] on the query's device; all queries if query_lengths is undefined.
/// No sequence has more queries than keys. Its last query stands at its last key. Padded queries
/// have output 0. Nothing waits for the device.
at::Tensor attend_lengths(const char* function, const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value, const at::Tensor& query_lengths,
                          const at::Tensor& key_lengths, const AttendOptions& options);

}  // namespace heed::detail
