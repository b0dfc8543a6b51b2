#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>
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

/// A Linear of which each of several processes holds a part: the interface through which heed's
/// modules use it. `heed::distributed` implements it.
class HEED_API ShardedLinearImpl : public torch::nn::LinearImpl {
 public:
  /// Throws c10::ValueError: a copy would be a Linear of this part alone.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;

  /// Gives a whole Linear to `draw`, which sets its parameters, and copies this part of them.
  void initialize(const std::function<void(torch::nn::LinearImpl&)>& draw);

  /// Called once for an input, before all projections that share it. x [B, L, E] is equal in all
  /// processes, or is this process's part of the sequence if `sequence_parts` is above 1. Returns
  /// the whole x; the gradient of x is summed over the processes.
  virtual at::Tensor enter(const at::Tensor& x) const = 0;
  /// Like `enter`, for a tensor that is never split: a memory, or a bias of the scores.
  virtual at::Tensor enter_whole(const at::Tensor& x) const = 0;
  /// The product with this part of the weight. If the weight is split along its inputs, the product
  /// is summed over the processes.
  virtual at::Tensor project(const at::Tensor& x) const = 0;

  /// The number of parts into which the sequence is split between layers; 1 if it is not.
  virtual int64_t sequence_parts() const = 0;
  /// This process's part of the sequence of x [B, L, E], which is equal in all processes; and the
  /// whole of it. Both return x itself if `sequence_parts` is 1.
  /// @{
  virtual at::Tensor split_sequence(const at::Tensor& x) const = 0;
  virtual at::Tensor join_sequence(const at::Tensor& x) const = 0;
  /// @}

  /// A number that differs between the processes, for random numbers that must differ.
  virtual int64_t rank() const = 0;

  /// This process's part of the weight; also of the bias if its dim is 0.
  const TensorShard shard;

 protected:
  // Keeps `shard` of the parameters of `whole`, which become this layer's.
  ShardedLinearImpl(const torch::nn::LinearImpl& whole, const TensorShard& shard);
};

/// An Embedding of which each of several processes holds some rows; see ShardedLinearImpl.
class HEED_API ShardedEmbeddingImpl : public torch::nn::EmbeddingImpl {
 public:
  /// Throws c10::ValueError: a copy would be an Embedding of these rows alone.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;

  /// Gives a whole weight to `draw`, which sets it, and copies this part of it.
  void initialize(const std::function<void(at::Tensor&)>& draw);

  /// The embeddings of tokens [B, L] below shard.whole: [B, L, E], equal in all processes.
  virtual at::Tensor embed(const at::Tensor& tokens) const = 0;
  /// The products of x [B, L, E], which is equal in all processes, with these rows:
  /// [B, L, shard.size].
  virtual at::Tensor scores(const at::Tensor& x) const = 0;

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
