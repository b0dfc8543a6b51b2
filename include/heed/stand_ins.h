// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>
#include <heed/linear_cross_entropy.h>
#include <heed/tensor_shard.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace heed {

/// The way in which processes share a layer. By default, each process has the whole layer.
class HEED_API LayerSharing {
 public:
  virtual ~LayerSharing() = default;

  /// This process's part of the weight, and of the bias if its dim is 0; empty if this process has
  /// the whole layer.
  virtual std::optional<TensorShard> part() const { return std::nullopt; }

  /// Called once for an input, before all projections that share it. x [B, L, E] is equal in all
  /// processes, or is this process's part of the sequence if `sequence_parts` is above 1. Returns
  /// the whole x; the gradient of x is summed over the processes.
  virtual at::Tensor enter(const at::Tensor& x) const { return x; }
  /// Like `enter`, for a tensor that is never split: a memory, or a bias of the scores.
  virtual at::Tensor enter_whole(const at::Tensor& x) const { return x; }
  /// Like `enter`, for a parameter that processes have whole and apply between layers: where they
  /// apply it to their parts of the sequence, its gradient is summed over the processes.
  virtual at::Tensor enter_parameter(const at::Tensor& parameter) const { return parameter; }

  /// The number of parts into which the sequence is split between layers; 1 if it is not.
  virtual int64_t sequence_parts() const { return 1; }
  /// This process's part of the sequence of x [B, L, E], which is equal in all processes; and the
  /// whole of it. Both return x itself if `sequence_parts` is 1.
  /// @{
  virtual at::Tensor split_sequence(const at::Tensor& x) const { return x; }
  virtual at::Tensor join_sequence(const at::Tensor& x) const { return x; }
  /// @}

  /// A number that differs between the processes that have parts, for random numbers that must
  /// differ.
  virtual int64_t rank() const { return 0; }
};

/// The interface of a layer that stands in a Linear's place and computes the product in its own
/// way. heed's modules use such a layer through this interface. The layer's class derives from
/// torch::nn::LinearImpl too; the sizes, dtype and device of `weight` are those of the weight by
/// which inputs are multiplied.
///
/// A class that derives from LinearImpl alone is an error where a module of heed uses it: forward
/// is not virtual there, so that nobody would call the class's own.
class HEED_API LinearStandIn : public LayerSharing {
 public:
  /// The product of x [..., in_features] with the weight, and the bias added. If the weight is
  /// split along its inputs, the product is summed over the processes.
  virtual at::Tensor project(const at::Tensor& x) const = 0;

  /// The cross entropy of the scores that this layer, a model's head, has for x [B, L,
  /// in_features], with targets [B, L] of the whole vocabulary; [B * L] losses without reduction.
  /// By default that of `project(enter(x))`, with the errors of `linear_cross_entropy`. A bias of
  /// the options, such as a decoder's score_bias, is added beside the layer's own.
  virtual at::Tensor loss(const at::Tensor& x, const at::Tensor& targets,
                          const LinearCrossEntropyOptions& loss_options) const;

  /// Gives a whole Linear to `draw`, which sets its parameters, and takes its own from them.
  virtual void initialize(const std::function<void(torch::nn::LinearImpl&)>& draw) = 0;
};

/// The interface of a layer that stands in an Embedding's place; see LinearStandIn. The layer's
/// class derives from torch::nn::EmbeddingImpl too.
class HEED_API EmbeddingStandIn : public LayerSharing {
 public:
  /// The embeddings of tokens [B, L] of the whole vocabulary: [B, L, E], equal in all processes.
  virtual at::Tensor embed(const at::Tensor& tokens) const = 0;
  /// The products of x [B, L, E], which is equal in all processes, with the rows that this process
  /// has: [B, L, rows].
  virtual at::Tensor scores(const at::Tensor& x) const = 0;

  /// The cross entropy of these scores: see LinearStandIn::loss. By default that of `scores(x)`.
  virtual at::Tensor loss(const at::Tensor& x, const at::Tensor& targets,
                          const LinearCrossEntropyOptions& loss_options) const;

  /// Gives a whole weight to `draw`, which sets it, and takes its own from it.
  virtual void initialize(const std::function<void(at::Tensor&)>& draw) = 0;
};

}  // namespace heed
