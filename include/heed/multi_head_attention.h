// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/attend.h>
#include <heed/multi_head_attention_base.h>

#include <tuple>

namespace heed {

/// Multi-head attention without projections, for heads that are packed in the last dimension:
/// splits the heads, calls `attend` and merges the heads again. The number of key/value heads G is
/// key's last dimension divided by D.
///
/// @code
/// auto x = torch::randn({2, 10, 64});  // [B, L, H * D]
/// auto causal = heed::AttendOptions().causal(true);
/// auto output = heed::multi_head_attention(x, x, x, /*num_heads=*/4, causal);
/// @endcode
///
/// Shapes (letters as in attend_options.h):
///   query    [B, L, H * D]
///   key      [B, S, G * D]   same dtype and device as query
///   value    [B, S, G * Dv]  same dtype and device as query
///   returns  [B, L, H * Dv]
/// Throws c10::ValueError when a shape, dtype, device or option is invalid.
HEED_API at::Tensor multi_head_attention(const at::Tensor& query, const at::Tensor& key,
                                         const at::Tensor& value, int64_t num_heads,
                                         const AttendOptions& options = {});

/// Like `multi_head_attention`, but returns {output [B, L, H * Dv], weights [B, H, L, S]}. Throws
/// as `multi_head_attention` does.
HEED_API std::tuple<at::Tensor, at::Tensor> multi_head_attention_with_weights(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t num_heads,
    const AttendOptions& options = {});

/// Options of `MultiHeadAttention`.
struct HEED_API MultiHeadAttentionOptions
    : MultiHeadAttentionOptionsBase<MultiHeadAttentionOptions> {
  /// Required options; `dropout` is 0.1 by default.
  MultiHeadAttentionOptions(int64_t emb_dim, int64_t head_nums)
      : MultiHeadAttentionOptionsBase(emb_dim, /*dropout=*/0.1), head_nums_(head_nums) {}
  HEED_NO_BOOL(MultiHeadAttentionOptions);
  /// H, the number of heads.
  HEED_NUMBER_ARG(int64_t, head_nums);
};

/// Multi-head attention with query, key, value and output projections.
/// Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2.
///
/// In training mode it drops attention weights with probability 0.1 unless you set another dropout,
/// as the documents that heed mirrors do. torch::nn::MultiheadAttention and GroupQueryAttention
/// drop none by default.
///
/// @code
/// heed::MultiHeadAttention attention(/*emb_dim=*/64, /*head_nums=*/4);
/// auto x = torch::randn({2, 10, 64});                           // [B, L, E]
/// auto y = attention->forward(x, heed::causal_mask(10, 10));    // self-attention
/// auto z = attention->forward(x, memory, memory);               // memory [B, S, E]
/// auto [output, weights] = attention->forward_with_weights(x);  // weights [B, H, L, L]
/// @endcode
///
/// Parameters: fc_q, fc_k, fc_v and fc_out. By default, each is a Linear(E, E); with other options,
/// fc_q is (E, H * D), fc_k (key_emb_dim, H * D), fc_v (value_emb_dim, H * Dv) and fc_out
/// (H * Dv, E).
///
/// Query, key and value may be nested tensors (torch::nested) of sequences. Each sequence then
/// attends only to its own keys, the output is nested too, and a mask is an error.
///
/// The class is final: heed's modules call it in several ways, and would pass over some of those
/// that a subclass overrides. Hold one in a module of your own instead.
class HEED_API MultiHeadAttentionImpl final
    : public MultiHeadAttentionImplBase<MultiHeadAttentionImpl, MultiHeadAttentionOptions> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit MultiHeadAttentionImpl(const MultiHeadAttentionOptions& options);
  /// Sets these options and leaves the others at their defaults; `dropout` is 0.1 if it is left
  /// out.
  MultiHeadAttentionImpl(int64_t emb_dim, int64_t head_nums, double dropout = 0.1);
  HEED_NO_BOOL(MultiHeadAttentionImpl);

  torch::nn::Linear fc_out{nullptr};  ///< (H * Dv, E)
};

extern template class MultiHeadAttentionImplBase<MultiHeadAttentionImpl, MultiHeadAttentionOptions>;

}  // namespace heed

HEED_MODULE(MultiHeadAttention, heed::AttentionInputs);
