// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>
#include <heed/stand_ins.h>
#include <heed/tensor_shard.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace heed {

/// While this object exists, sharded layers of this thread take and return whole sequences, even
/// those that otherwise split the sequence among processes: for lengths that the number of
/// processes does not divide. `forward_cached` does this by itself.
class HEED_API WholeSequence {
 public:
  /// `active` false ends what an outer object began.
  explicit WholeSequence(bool active = true);
  ~WholeSequence();
  WholeSequence(const WholeSequence&) = delete;
  WholeSequence& operator=(const WholeSequence&) = delete;
  /// Whether one exists in this thread.
  static bool is_active();

 private:
  const bool previous_;
};

/// A Linear of which each of several processes holds a part. `heed::distributed` implements it.
class HEED_API ShardedLinearImpl : public torch::nn::LinearImpl, public LinearStandIn {
 public:
  /// Throws c10::ValueError: a copy would be a Linear of this part alone.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;

  void initialize(const std::function<void(torch::nn::LinearImpl&)>& draw) override;
  std::optional<TensorShard> part() const override { return shard; }

  /// This process's part of the weight; also of the bias if its dim is 0.
  const TensorShard shard;

 protected:
  // Keeps `shard` of the parameters of `whole`, which become this layer's.
  ShardedLinearImpl(const torch::nn::LinearImpl& whole, const TensorShard& shard);
};

/// An Embedding of which each of several processes holds some rows; see ShardedLinearImpl.
class HEED_API ShardedEmbeddingImpl : public torch::nn::EmbeddingImpl, public EmbeddingStandIn {
 public:
  /// Throws c10::ValueError: a copy would be an Embedding of these rows alone.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;

  void initialize(const std::function<void(at::Tensor&)>& draw) override;
  std::optional<TensorShard> part() const override { return shard; }

  /// This process's part of the weight.
  const TensorShard shard;

 protected:
  // Keeps `shard` of the weight of `whole`, which becomes this layer's.
  ShardedEmbeddingImpl(const torch::nn::EmbeddingImpl& whole, const TensorShard& shard);
};

namespace detail {

/// Narrows a parameter or a buffer to `shard`, in place, and drops its gradient.
HEED_API void keep_shard(at::Tensor& tensor, const TensorShard& shard);

/// For a layer of which a copy would be wrong without its group.
[[noreturn]] HEED_API void refuse_clone();

}  // namespace detail

}  // namespace heed
