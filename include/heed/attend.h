// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/attend_options.h>
#include <heed/attend_path.h>
#include <heed/export.h>

#include <cstdint>
#include <tuple>

namespace heed {

/// Attention with grouped key/value heads: softmax(scale * QK^T + bias) V.
/// Vaswani et al. 2017 (arXiv:1706.03762); grouped heads: Ainslie et al. 2023 (arXiv:2305.13245).
///
/// @code
/// auto query = torch::randn({2, 8, 10, 64});  // [B, H, L, D]
/// auto key = torch::randn({2, 2, 10, 64});    // [B, G, S, D]
/// auto value = torch::randn({2, 2, 10, 64});  // [B, G, S, Dv]
/// auto output = heed::attend(query, key, value, heed::AttendOptions().causal(true));
/// @endcode
///
/// Query head h uses key/value head h / (H / G); keys and values are never repeated. A query that
/// may see no key gets output 0 and finite gradients. Scores and softmax are computed in float32,
/// or in float64 for float64 tensors. Under autocast, query, key, value and bias are converted: see
/// `Autocast`.
///
/// Shapes:
///   query    [B, H, L, D]   float64, float32, bfloat16 or float16, any strides
///   key      [B, G, S, D]   same dtype and device as query
///   value    [B, G, S, Dv]  same dtype and device as query
///   returns  [B, H, L, Dv]
/// Any of B, L and S may be 0. Derivatives of any order are available; with dropout, only the
/// first. The first derivative takes O(L * S) memory if a second one is requested.
/// Throws c10::ValueError when a shape, dtype, device or option is invalid.
HEED_API at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const AttendOptions& options = {});

/// Like `attend`, and also returns the attention weights that were applied to V, after dropout.
///
/// Returns {output [B, H, L, Dv], weights [B, H, L, S]}, both in the dtype of query.
/// Throws as `attend` does.
HEED_API std::tuple<at::Tensor, at::Tensor> attend_with_weights(const at::Tensor& query,
                                                                const at::Tensor& key,
                                                                const at::Tensor& value,
                                                                const AttendOptions& options = {});

/// Like `attend`, and also returns the log of the sum of exp of each query's scores, with which
/// `merge_attention` joins parts of one attention. It counts a sink as a key, and ignores dropout.
///
/// Returns {output [B, H, L, Dv], lse [B, H, L]}; lse is float32, or float64 for float64 tensors,
/// and -inf for a query that may see no key. Gradients pass through both.
/// Throws as `attend` does.
HEED_API std::tuple<at::Tensor, at::Tensor> attend_with_lse(const at::Tensor& query,
                                                            const at::Tensor& key,
                                                            const at::Tensor& value,
                                                            const AttendOptions& options = {});

/// `attend` for sequences of different lengths that are packed one after the other, without
/// padding. The queries of sequence n see only the keys of sequence n; causal and windows apply
/// within each sequence.
///
/// @code
/// // Sequences of 3, 5 and 2 tokens: T = U = 10.
/// auto offsets = torch::tensor({0, 3, 8, 10});
/// auto query = torch::randn({10, 8, 64}), key = torch::randn({10, 2, 64});
/// auto value = torch::randn({10, 2, 64});
/// auto output = heed::attend_varlen(query, key, value, offsets, offsets);
/// @endcode
///
/// Shapes (T and U are the sums of the N sequences' lengths):
///   query           [T, H, D]   float64, float32, bfloat16 or float16, any strides
///   key             [U, G, D]   same dtype and device as query
///   value           [U, G, Dv]  same dtype and device as query
///   query_offsets   [N + 1]     int64 or int32: 0, then where each sequence ends; the last is T
///   key_offsets     [N + 1]     int64 or int32: 0, then where each sequence ends; the last is U
///   returns         [T, H, Dv]
/// Offsets are read on the CPU: offsets on another device cost a synchronization.
/// Throws c10::ValueError when a shape, dtype, device, offset or option is invalid, or when an
/// option speaks of single queries or keys: mask, bias, documents, lengths, global tokens or
/// relative positions.
HEED_API at::Tensor attend_varlen(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const at::Tensor& query_offsets,
                                  const at::Tensor& key_offsets, const AttendOptions& options = {});

/// `attend_varlen` without a synchronization: on CUDA, offsets on the device are not read, so that
/// the lengths of the longest sequence must be known.
///
/// `longest_query` and `longest_key` may be too large, which costs time, but not too small. If
/// query_offsets and key_offsets are the same tensor, causal attention in float32 is faster. On the
/// CPU, and on CUDA if the environment variable HEED_CUDA_ROUTES is "verify", the numbers are
/// checked.
/// Throws c10::ValueError as above, or when a longest length is out of range.
HEED_API at::Tensor attend_varlen(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const at::Tensor& query_offsets,
                                  const at::Tensor& key_offsets, int64_t longest_query,
                                  int64_t longest_key, const AttendOptions& options = {});

/// Like `attend_varlen`, and also returns the log of the sum of exp of each query's scores; see
/// `attend_with_lse`.
///
/// Returns {output [T, H, Dv], lse [T, H]}. Throws as `attend_varlen` does.
/// @{
HEED_API std::tuple<at::Tensor, at::Tensor> attend_varlen_with_lse(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& query_offsets, const at::Tensor& key_offsets,
    const AttendOptions& options = {});
HEED_API std::tuple<at::Tensor, at::Tensor> attend_varlen_with_lse(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& query_offsets, const at::Tensor& key_offsets, int64_t longest_query,
    int64_t longest_key, const AttendOptions& options = {});
/// @}

/// Returns the path that `attend` takes for these arguments. Throws as `attend` does.
HEED_API AttendPath attend_path(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, const AttendOptions& options = {});

}  // namespace heed
