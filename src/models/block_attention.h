// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/transformer.h>

#include <memory>

namespace heed::detail {

/// Returns visit(attention) of the block's self-attention, which it must have: a
/// GroupQueryAttentionImpl or a LatentAttentionImpl.
template <typename Visit>
decltype(auto) visit_attention(const TransformerBlockImpl& block, const Visit& visit) {
  if (block.attention) return visit(*block.attention.ptr());
  return visit(*block.attention_module()->as<LatentAttentionImpl>());
}

/// The rotary embedding of the block's self-attention; empty if there is none.
inline RotaryEmbedding& rotary_of(const TransformerBlockImpl& block) {
  if (!block.options.self_attention())
    return block.cross_attention.ptr()->rotary;  // which has none
  return visit_attention(block,
                         [](auto& attention) -> RotaryEmbedding& { return attention.rotary; });
}

/// The sequence that processes share; null if they do not share one.
inline std::shared_ptr<const SharedSequence> shared_sequence_of(const TransformerBlockImpl& block) {
  return block.attention ? block.attention->shared_sequence : nullptr;
}

/// The first Linear of an attention, or of a block, which says how processes share the block.
/// @{
inline const torch::nn::Linear& first_linear(const GroupQueryAttentionImpl& attention) {
  return attention.fc_q;
}
inline const torch::nn::Linear& first_linear(const LatentAttentionImpl& attention) {
  return attention.fc_kv_down;
}
inline const torch::nn::Linear& first_linear(const TransformerBlockImpl& block) {
  if (!block.options.self_attention()) return first_linear(*block.cross_attention);
  return visit_attention(block, [](const auto& attention) -> const torch::nn::Linear& {
    return first_linear(attention);
  });
}
/// @}

}  // namespace heed::detail
