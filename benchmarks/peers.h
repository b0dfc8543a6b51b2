// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attention.h>
#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>

#include <optional>
#include <tuple>

/// Peers of heed's modules. Each is made from one of ours and computes the same: the textbook's
/// share its parameters, torch::nn::MultiheadAttention copies them.

namespace heed::bench {

/// Scores and weights in memory, L x S for each head: as tutorials write it, mask 0 where hidden.
at::Tensor textbook_attention(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const std::optional<at::Tensor>& mask);

/// Attention as tutorials write it out, scores and weights in memory: operator for operator what
/// the class of the same name in tests/parity/originals/heads.py does.
struct TextbookAttention {
  explicit TextbookAttention(const Attention& ours);
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  torch::nn::Linear fc_q, fc_k, fc_v;
  torch::nn::Dropout dropout;
};

struct TextbookAttentionV1 {
  explicit TextbookAttentionV1(const AttentionV1& ours);
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  torch::nn::Linear qkv;
  torch::nn::Dropout dropout;
};

struct TextbookMultiHeadAttention {
  explicit TextbookMultiHeadAttention(const MultiHeadAttention& ours);
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});
  std::tuple<at::Tensor, at::Tensor> forward_with_weights(
      const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  int64_t num_heads;
  torch::nn::Linear fc_q, fc_k, fc_v, fc_out;
  torch::nn::Dropout dropout;
};

/// Repeats keys and values for every query head.
struct TextbookGroupQueryAttention {
  explicit TextbookGroupQueryAttention(const GroupQueryAttention& ours);
  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& mask = {});

  int64_t num_heads, num_groups;
  torch::nn::Linear fc_q, fc_k, fc_v, fc_o;
};

/// torch::nn::MultiheadAttention in eval mode with the weights of ours. It has an output projection
/// where ours may have none (then the identity), and as many key heads as query heads.
torch::nn::MultiheadAttention torch_peer(const Attention& ours);
torch::nn::MultiheadAttention torch_peer(const AttentionV1& ours);
torch::nn::MultiheadAttention torch_peer(const MultiHeadAttention& ours);
torch::nn::MultiheadAttention torch_peer(const GroupQueryAttention& ours);

/// The least that LibTorch's own operators need for `MultiHeadAttention`: its four matrix products
/// and at::scaled_dot_product_attention.
at::Tensor products_and_sdpa(const MultiHeadAttention& ours, const at::Tensor& x);

/// The parts of `MultiHeadAttention` alone: four of LibTorch's matrix products, at::linear's or
/// those of oneDNN, and `attend` between them.
/// @{
at::Tensor products_and_attend(const MultiHeadAttention& ours, const at::Tensor& x);
at::Tensor onednn_products_and_attend(const MultiHeadAttention& ours, const at::Tensor& x);
/// @}

}  // namespace heed::bench
