// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/multi_head_attention_base.h>

namespace heed {

/// Options of `GroupQueryAttention`.
struct HEED_API GroupQueryAttentionOptions
    : MultiHeadAttentionOptionsBase<GroupQueryAttentionOptions> {
  /// Required options; `dropout` is 0 by default.
  GroupQueryAttentionOptions(int64_t emb_dim, int64_t head_num, int64_t group_num)
      : MultiHeadAttentionOptionsBase(emb_dim, /*dropout=*/0.0),
        head_num_(head_num),
        group_num_(group_num) {}
  HEED_NO_BOOL(GroupQueryAttentionOptions);
  /// H, the number of query heads; divisible by group_num.
  HEED_NUMBER_ARG(int64_t, head_num);
  /// G, the number of key/value heads; G = 1 is multi-query attention, G = H is multi-head
  /// attention.
  HEED_NUMBER_ARG(int64_t, group_num);
};

/// Multi-head attention in which H / G query heads share each key/value head.
/// Ainslie et al. 2023 (arXiv:2305.13245).
///
/// @code
/// // Eight query heads share two key/value heads.
/// heed::GroupQueryAttention attention(/*emb_dim=*/128, /*head_num=*/8, /*group_num=*/2);
/// auto x = torch::randn({3, 50, 128});                        // [B, L, E]
/// auto y = attention->forward(x, heed::causal_mask(50, 50));  // [B, L, E]
/// @endcode
///
/// Parameters: fc_q, a Linear(E, H * D); fc_k, a Linear(key_emb_dim, G * D); fc_v, a
/// Linear(value_emb_dim, G * Dv); fc_o, a Linear(H * Dv, E).
///
/// The class is final: heed's modules call it in several ways, and would pass over some of those
/// that a subclass overrides. Hold one in a module of your own instead.
class HEED_API GroupQueryAttentionImpl final
    : public MultiHeadAttentionImplBase<GroupQueryAttentionImpl, GroupQueryAttentionOptions> {
 public:
  /// Throws c10::ValueError when an option is out of range.
  explicit GroupQueryAttentionImpl(const GroupQueryAttentionOptions& options);
  /// Sets these options and leaves the others at their defaults.
  GroupQueryAttentionImpl(int64_t emb_dim, int64_t head_num, int64_t group_num);
  HEED_NO_BOOL(GroupQueryAttentionImpl);

  torch::nn::Linear fc_o{nullptr};  ///< (H * Dv, E)
};

extern template class MultiHeadAttentionImplBase<GroupQueryAttentionImpl,
                                                 GroupQueryAttentionOptions>;

}  // namespace heed

HEED_MODULE(GroupQueryAttention, heed::AttentionInputs);
