#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

/// Letters used for shapes in every header of heed:
///   B batch   H query heads   G key/value heads (H % G == 0)   L query length   S key length
///   D head dim of query and key   Dv head dim of value   E embedding dim   T, U packed lengths

namespace heed {

/// What `attend` does besides softmax(scale * QK^T) V. Chainable:
/// `AttendOptions().causal(true).window(256)`.
///
/// Mask, causal and window are intersected: a query sees a key only where all of them let it.
/// With L != S, query i stands at position p = i + S - L: the last query is the last key's.
struct HEED_API AttendOptions {
  /// Which keys a query may see: bool or integer, nonzero / true = may attend.
  /// [L, S], [B or 1, L, S] or [B or 1, H or 1, L or 1, S]. See masks.h for builders.
  TORCH_ARG(std::optional<at::Tensor>, mask) = std::nullopt;
  /// Floating, added to the scaled scores; shapes as for `mask`. May require grad.
  TORCH_ARG(std::optional<at::Tensor>, bias) = std::nullopt;
  /// A query at position p sees keys j <= p.
  TORCH_ARG(bool, causal) = false;
  /// A query at position p sees at most this many keys, itself included: p - window < j <= p when
  /// causal, |p - j| < window when not. At least 1.
  TORCH_ARG(std::optional<int64_t>, window) = std::nullopt;
  /// Probability in [0, 1) that a weight is zeroed, the others scaled by 1 / (1 - dropout).
  /// Applied whenever > 0; modules pass 0 in eval mode.
  TORCH_ARG(double, dropout) = 0.0;
  /// Factor on QK^T; 1 / sqrt(D) unless given.
  TORCH_ARG(std::optional<double>, scale) = std::nullopt;
  /// Bounds the scaled scores: softcap * tanh(score / softcap), before anything is added to them.
  /// Above 0. Gemma Team 2024 (arXiv:2408.00118).
  TORCH_ARG(std::optional<double>, softcap) = std::nullopt;
  /// Floating [H] without grad: slope * |p - j| is taken off the score of key j for a query at
  /// position p; see alibi.h. Press et al. 2022 (arXiv:2108.12409).
  TORCH_ARG(std::optional<at::Tensor>, alibi_slopes) = std::nullopt;
  /// Floating [H]: each head's score of one more key, whose value is 0: the weights then sum to
  /// less than 1, and to 0 for a query that sees no key. May require grad. Xiao et al. 2024
  /// (arXiv:2309.17453).
  TORCH_ARG(std::optional<at::Tensor>, sinks) = std::nullopt;
};

/// How a call of `attend` is computed; see `attend_path`.
enum class AttendPath {
  decode,  ///< our CPU kernel for inference with few queries: O(L) memory
  fused,   ///< LibTorch's fused kernel: O(L + S) memory beside the mask
  block,   ///< our CPU kernel over blocks of queries and keys: O(L + S) memory beside the mask
  math,    ///< matrix products and a softmax: O(L * S) memory
};

/// The path's name, for logs and benchmarks.
HEED_API std::string_view to_string(AttendPath path);

/// Attention with grouped key/value heads: softmax(scale * QK^T + bias) V.
/// Vaswani et al. 2017 (arXiv:1706.03762); grouped heads: Ainslie et al. 2023 (arXiv:2305.13245).
///
/// Query head h uses key/value head h / (H / G); keys and values are never repeated. A query that
/// may see no key gets output 0 and finite gradients. Scores and softmax are at least float32.
///
/// Shapes:
///   query    [B, H, L, D]   float64, float32, bfloat16 or float16, any strides
///   key      [B, G, S, D]   same dtype and device as query
///   value    [B, G, S, Dv]  same dtype and device as query
///   returns  [B, H, L, Dv]
/// Any of B, L and S may be 0. Differentiable once; `attend_with_weights` as often as you like.
/// Throws c10::ValueError when a shape, dtype, device or option is wrong.
HEED_API at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const AttendOptions& options = {});

/// `attend`, and the weights that were applied to V, after dropout.
///
/// Returns {output [B, H, L, Dv], weights [B, H, L, S]}, both in the dtype of query.
/// Throws as `attend` does.
HEED_API std::tuple<at::Tensor, at::Tensor> attend_with_weights(const at::Tensor& query,
                                                                const at::Tensor& key,
                                                                const at::Tensor& value,
                                                                const AttendOptions& options = {});

/// `attend` over sequences of different lengths packed end to end, without padding: the queries of
/// sequence n see the keys of sequence n alone. Causal and window count within each sequence.
///
/// Shapes (T and U are the sums of the N sequences' lengths):
///   query           [T, H, D]   float64, float32, bfloat16 or float16, any strides
///   key             [U, G, D]   same dtype and device as query
///   value           [U, G, Dv]  same dtype and device as query
///   query_offsets   [N + 1]     int64: 0, then where each sequence ends; the last is T
///   key_offsets     [N + 1]     int64: 0, then where each sequence ends; the last is U
///   returns         [T, H, Dv]
/// Offsets are read on the CPU: those on another device cost a synchronisation.
/// Throws c10::ValueError when a shape, dtype, device, offset or option is wrong; a mask or a bias
/// is.
HEED_API at::Tensor attend_varlen(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const at::Tensor& query_offsets,
                                  const at::Tensor& key_offsets, const AttendOptions& options = {});

/// The path that `attend` takes for these arguments. Throws as `attend` does.
HEED_API AttendPath attend_path(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, const AttendOptions& options = {});

}  // namespace heed
