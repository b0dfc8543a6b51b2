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

/// What a module's forward pass costs. Multiply-adds are those of matrix products, without regard
/// to a mask; bytes are in the dtype of the module's weights. A figure beyond int64 is the largest
/// int64.
struct HEED_API AttentionCost {
  int64_t parameters = 0;       ///< elements of all weights and biases
  int64_t projection_macs = 0;  ///< multiply-adds of the linear layers
  int64_t attention_macs = 0;   ///< multiply-adds of QK^T and of the weights times V
  /// Kept for the backward pass beside the module's input and output, by a kernel that keeps no
  /// weights: `attend`, at most.
  int64_t fused_activation_bytes = 0;
  /// The same where the weights are kept, and their dropout in training mode:
  /// `attend_with_weights`, and the operators one by one.
  int64_t unfused_activation_bytes = 0;
  /// Keys and values of S tokens, as a cache holds them between decoding steps.
  int64_t kv_cache_bytes = 0;
};

/// A table with one row an element.
HEED_API std::ostream& operator<<(std::ostream& stream, const AttentionCost& cost);

/// Cost of one forward pass over batch B, query length L and key length S = L unless given.
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
/// Of the attention inside, and the LayerNorm's parameters.
HEED_API AttentionCost attention_cost(const ResidualAttentionImpl& module, int64_t batch,
                                      int64_t query_length,
                                      std::optional<int64_t> key_length = std::nullopt);

/// Of a call with these tensors, shaped as in `attend`. Throws as `attend` does.
HEED_API AttentionCost attention_cost(const ScaledDotProductAttentionImpl& module,
                                      const at::Tensor& query, const at::Tensor& key,
                                      const at::Tensor& value);

}  // namespace heed
