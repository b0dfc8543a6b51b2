#pragma once

#include <heed/attend.h>
#include <heed/multi_head_attention_base.h>

#include <tuple>

namespace heed {

/// Attention over heads packed in the last dimension, without projections: splits the heads,
/// calls `attend` and merges them. The number of key/value heads G is key's last dimension over D.
///
/// Shapes (letters as in attend.h):
///   query    [B, L, H * D]
///   key      [B, S, G * D]   same dtype and device as query
///   value    [B, S, G * Dv]  same dtype and device as query
///   returns  [B, L, H * Dv]
/// Throws c10::ValueError when a shape, dtype, device or option is wrong.
HEED_API at::Tensor multi_head_attention(const at::Tensor& query, const at::Tensor& key,
                                         const at::Tensor& value, int64_t num_heads,
                                         const AttendOptions& options = {});

/// `multi_head_attention`, and the weights: {output [B, L, H * Dv], weights [B, H, L, S]}. Throws
/// likewise.
HEED_API std::tuple<at::Tensor, at::Tensor> multi_head_attention_with_weights(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t num_heads,
    const AttendOptions& options = {});

/// Options of `MultiHeadAttention`.
struct HEED_API MultiHeadAttentionOptions
    : MultiHeadAttentionOptionsBase<MultiHeadAttentionOptions> {
  /// Required options; `dropout` is 0.1 unless set.
  MultiHeadAttentionOptions(int64_t emb_dim, int64_t head_nums)
      : MultiHeadAttentionOptionsBase(emb_dim, /*dropout=*/0.1), head_nums_(head_nums) {}
  /// H, the number of heads.
  TORCH_ARG(int64_t, head_nums);
};

/// Multi-head attention with query, key, value and output projections.
/// Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2.
///
/// Parameters: fc_q, fc_k, fc_v and fc_out, each a Linear(E, E) unless an option says otherwise:
/// fc_q (E, H * D), fc_k (key_emb_dim, H * D), fc_v (value_emb_dim, H * Dv), fc_out (H * Dv, E).
///
/// Query, key and value may be nested tensors (torch::nested) of sequences: each attends to its own
/// keys alone, the output is nested too, and a mask is refused.
class HEED_API MultiHeadAttentionImpl
    : public MultiHeadAttentionImplBase<MultiHeadAttentionImpl, MultiHeadAttentionOptions> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit MultiHeadAttentionImpl(const MultiHeadAttentionOptions& options);
  /// With these options, and the others at their defaults.
  MultiHeadAttentionImpl(int64_t emb_dim, int64_t head_nums, double dropout = 0.1);

  torch::nn::Linear fc_out{nullptr};  ///< (H * Dv, E)
};

extern template class MultiHeadAttentionImplBase<MultiHeadAttentionImpl, MultiHeadAttentionOptions>;

}  // namespace heed

HEED_MODULE(MultiHeadAttention);
