// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>

namespace heed::detail {

/// Attention of sequences that are padded at their end. Sequence b has query_lengths[b] queries
/// and at least as many keys, key_lengths[b]. Both are int64 [B] on the query's device; if
/// query_lengths is undefined, no query is padding. A sequence's last query stands at its last
/// key. The output of padding is 0. Nothing waits for the device.
at::Tensor attend_lengths(const char* function, const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value, const at::Tensor& query_lengths,
                          const at::Tensor& key_lengths, const AttendOptions& options);

}  // namespace heed::detail
