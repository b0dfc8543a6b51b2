// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attention.h>
#include <heed/differential_attention.h>
#include <heed/group_query_attention.h>
#include <heed/latent_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/residual_attention.h>
#include <heed/scaled_dot_product_attention.h>
#include <heed/self_attention.h>

#include <cstdint>
#include <ostream>

namespace heed {

/// The cost of a module's forward pass. Multiply-adds are those of the matrix products and ignore
/// masks; bytes are those of the dtype of the module's weights. A number that does not fit into
/// int64 is given as the largest int64.
struct HEED_API AttentionCost {
  int64_t parameters = 0;       ///< elements of all weights and biases
  int64_t projection_macs = 0;  ///< multiply-adds of the linear layers
  int64_t attention_macs = 0;   ///< multiply-adds of QK^T and of the weights times V
  /// Bytes kept for the backward pass besides the module's input and output, if the kernel does not
  /// keep the weights. `attend` keeps at most this.
  int64_t fused_activation_bytes = 0;
  /// Bytes kept for the backward pass besides the module's input and output, if the weights are
  /// kept and, in training mode, their dropout: for `attend_with_weights`, or for attention built
  /// from single operators.
  int64_t unfused_activation_bytes = 0;
  /// Bytes of the keys and values of S tokens, as a cache holds them between decoding steps.
  int64_t kv_cache_bytes = 0;
};

/// Prints a table with one row for each member.
HEED_API std::ostream& operator<<(std::ostream& stream, const AttentionCost& cost);

/// Returns the cost of one forward pass with batch size B, query length L and key length S; S = L
/// by default.
///
/// @code
/// heed::GroupQueryAttention attention(/*emb_dim=*/512, /*head_num=*/8, /*group_num=*/2);
/// auto cost = heed::attention_cost(*attention, /*batch=*/1, /*query_length=*/2048);
/// std::cout << cost << cost.kv_cache_bytes << " bytes of cache\n";
/// @endcode
///
/// Throws c10::ValueError when a size is negative.
/// @{
HEED_API AttentionCost attention_cost(const AttentionImpl& module, int64_t batch, int64_t length);
HEED_API AttentionCost attention_cost(const AttentionV1Impl& module, int64_t batch, int64_t length);
HEED_API AttentionCost attention_cost(const MultiHeadAttentionImpl& module, int64_t batch,
                                      int64_t query_length,
                                      std::optional<int64_t> key_length = std::nullopt);
HEED_API AttentionCost attention_cost(const GroupQueryAttentionImpl& module, int64_t batch,
                                      int64_t query_length,
                                      std::optional<int64_t> key_length = std::nullopt);
HEED_API AttentionCost attention_cost(const SelfAttentionImpl& module, int64_t batch,
                                      int64_t query_length,
                                      std::optional<int64_t> key_length = std::nullopt);
HEED_API AttentionCost attention_cost(const LatentAttentionImpl& module, int64_t batch,
                                      int64_t length);
HEED_API AttentionCost attention_cost(const DifferentialAttentionImpl& module, int64_t batch,
                                      int64_t length);
/// @}
/// The cost of the inner attention, with the LayerNorm's parameters added.
HEED_API AttentionCost attention_cost(const ResidualAttentionImpl& module, int64_t batch,
                                      int64_t query_length,
                                      std::optional<int64_t> key_length = std::nullopt);

/// Returns the cost of a call with these tensors; shapes as in `attend`. Throws as `attend` does.
HEED_API AttentionCost attention_cost(const ScaledDotProductAttentionImpl& module,
                                      const at::Tensor& query, const at::Tensor& key,
                                      const at::Tensor& value);

}  // namespace heed
