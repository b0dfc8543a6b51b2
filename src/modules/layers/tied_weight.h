// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/linear_cross_entropy.h>
#include <torch/nn/modules/embedding.h>

namespace heed::detail {

/// The weight [V, E] of an embedding for one forward pass of a model whose head may be tied to it.
/// The gradient of a tied weight is one tensor: the head's, to which the rows of the tokens are
/// added in place.
class TiedWeight {
 public:
  /// `is_tied` says whether `scores` or `loss` will be called.
  TiedWeight(const torch::nn::Embedding& embedding, bool is_tied);

  /// The embeddings of tokens [B, L]: [B, L, E].
  at::Tensor embed(const at::Tensor& tokens) const;
  /// The products of x [B, L, E] with the embeddings that this process has: [B, L, rows].
  at::Tensor scores(const at::Tensor& x) const;
  /// The loss of x [B, L, E], whose targets are [B, L].
  at::Tensor loss(const at::Tensor& x, const at::Tensor& targets,
                  const LinearCrossEntropyOptions& options) const;

 private:
  const torch::nn::Embedding& embedding_;
  // The weight for the two uses; undefined if no gradients are to be added.
  at::Tensor of_tokens_, of_head_;
};

}  // namespace heed::detail
