// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/distributed/process_group.h>
#include <heed/sharded_layers.h>

#include <ostream>
#include <utility>

namespace heed::distributed::detail {

/// An Embedding whose rows are split among the processes of a group. Shoeybi et al. 2019
/// (arXiv:1909.08053).
class VocabParallelEmbeddingImpl : public ShardedEmbeddingImpl {
 public:
  VocabParallelEmbeddingImpl(const torch::nn::EmbeddingImpl& whole, const TensorShard& shard,
                             ProcessGroup group)
      : ShardedEmbeddingImpl(whole, shard), group_(std::move(group)) {}

  void pretty_print(std::ostream& stream) const override;
  at::Tensor embed(const at::Tensor& tokens) const override;
  at::Tensor scores(const at::Tensor& x) const override;
  at::Tensor loss(const at::Tensor& x, const at::Tensor& targets,
                  const LinearCrossEntropyOptions& loss_options) const override;

 private:
  const ProcessGroup group_;
};

}  // namespace heed::distributed::detail
