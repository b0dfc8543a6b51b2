// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/arg.h>
#include <heed/distributed/process_group.h>
#include <heed/sharded_layers.h>
#include <torch/arg.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <ostream>

namespace heed::distributed {

/// Options of `ColumnParallelLinear`.
struct HEED_API ColumnParallelLinearOptions {
  /// Required options.
  ColumnParallelLinearOptions(int64_t in_features, int64_t out_features)
      : in_features_(in_features), out_features_(out_features) {}
  HEED_NO_BOOL(ColumnParallelLinearOptions);
  /// The size of the input's last dimension.
  HEED_NUMBER_ARG(int64_t, in_features);
  /// The size of the whole output's last dimension; a multiple of the number of processes.
  HEED_NUMBER_ARG(int64_t, out_features);
  /// Whether a bias is added.
  TORCH_ARG(bool, bias) = true;
  /// Whether each process gets the whole output instead of its part.
  TORCH_ARG(bool, gather_output) = false;
  /// Whether each process gives its part of the sequence, x [B, L / P, in_features], which is
  /// gathered. Korthikanti et al. 2022 (arXiv:2205.05198).
  TORCH_ARG(bool, sequence_parallel) = false;
};

/// Options of `RowParallelLinear`.
struct HEED_API RowParallelLinearOptions {
  /// Required options.
  RowParallelLinearOptions(int64_t in_features, int64_t out_features)
      : in_features_(in_features), out_features_(out_features) {}
  HEED_NO_BOOL(RowParallelLinearOptions);
  /// The size of the whole input's last dimension; a multiple of the number of processes.
  HEED_NUMBER_ARG(int64_t, in_features);
  /// The size of the output's last dimension.
  HEED_NUMBER_ARG(int64_t, out_features);
  /// Whether a bias is added, once.
  TORCH_ARG(bool, bias) = true;
  /// Whether each process gives its part of the input's last dimension, as a ColumnParallelLinear
  /// returns it, instead of the whole input.
  TORCH_ARG(bool, input_is_parallel) = true;
  /// Whether each process gets its part of the sequence, [B, L / P, out_features]. L must be a
  /// multiple of P. Korthikanti et al. 2022 (arXiv:2205.05198).
  TORCH_ARG(bool, sequence_parallel) = false;
};

/// The base of the linear layers of tensor parallelism: the group, and how the sequence is split.
class HEED_API ParallelLinearImpl : public ShardedLinearImpl {
 public:
  at::Tensor enter_whole(const at::Tensor& x) const override;
  at::Tensor enter_parameter(const at::Tensor& parameter) const override;
  int64_t sequence_parts() const override;
  at::Tensor split_sequence(const at::Tensor& x) const override;
  at::Tensor join_sequence(const at::Tensor& x) const override;
  int64_t rank() const override;

 protected:
  // Keeps `shard` of the parameters of `whole`, which become this layer's.
  ParallelLinearImpl(const torch::nn::LinearImpl& whole, const TensorShard& shard,
                     ProcessGroup group, bool sequence_parallel);

  const ProcessGroup group_;

 private:
  const bool sequence_parallel_;
};

/// A Linear whose outputs are split among the processes of a group: each holds some rows of the
/// weight. Shoeybi et al. 2019 (arXiv:1909.08053).
///
/// @code
/// heed::distributed::ColumnParallelLinearOptions wider(/*in_features=*/64, /*out_features=*/256);
/// heed::distributed::RowParallelLinearOptions narrower(/*in_features=*/256, /*out_features=*/64);
/// heed::distributed::ColumnParallelLinear up(wider, group);
/// heed::distributed::RowParallelLinear down(narrower, group);
/// auto y = down->forward(up->forward(x).relu());  // x and y [B, L, 64], equal in all processes
/// @endcode
///
/// Processes with the same seed hold the parts of what a torch::nn::Linear in one process would
/// draw. Parameters: weight [out_features / P, in_features], bias [out_features / P].
class HEED_API ColumnParallelLinearImpl : public ParallelLinearImpl {
 public:
  /// Throws c10::ValueError when a size is invalid or does not divide. All processes of the group
  /// must have the same options.
  ColumnParallelLinearImpl(const ColumnParallelLinearOptions& options, const ProcessGroup& group);
  /// Keeps `shard` of the rows of an existing Linear, whose parameters become this layer's. If the
  /// processes' shards overlap, they are copies, and their gradients are summed.
  ColumnParallelLinearImpl(const torch::nn::LinearImpl& whole, const TensorShard& shard,
                           const ProcessGroup& group, bool sequence_parallel);

  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [..., in_features], equal in all processes, or [B, L / P, in_features] with
  /// sequence_parallel. Returns [..., out_features / P], or [..., out_features] with gather_output.
  /// Throws c10::DistError when a process fails.
  at::Tensor forward(const at::Tensor& x) const;

  at::Tensor enter(const at::Tensor& x) const override;
  at::Tensor project(const at::Tensor& x) const override;
  at::Tensor loss(const at::Tensor& x, const at::Tensor& targets,
                  const LinearCrossEntropyOptions& loss_options) const override;

 private:
  bool gather_output_ = false;
};
TORCH_MODULE(ColumnParallelLinear);

/// A Linear whose inputs are split among the processes of a group: each holds some columns of the
/// weight, and the products are summed. Shoeybi et al. 2019 (arXiv:1909.08053). The example is at
/// ColumnParallelLinear.
///
/// Processes with the same seed hold the parts of what a torch::nn::Linear in one process would
/// draw. Parameters: weight [out_features, in_features / P]; bias [out_features], equal in all
/// processes.
class HEED_API RowParallelLinearImpl : public ParallelLinearImpl {
 public:
  /// Throws c10::ValueError when a size is invalid or does not divide. All processes of the group
  /// must have the same options.
  RowParallelLinearImpl(const RowParallelLinearOptions& options, const ProcessGroup& group);
  /// Keeps `shard` of the columns of an existing Linear, whose parameters become this layer's.
  RowParallelLinearImpl(const torch::nn::LinearImpl& whole, const TensorShard& shard,
                        const ProcessGroup& group, bool sequence_parallel);

  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

  /// x [..., in_features / P], or [..., in_features] without input_is_parallel. Returns
  /// [..., out_features], equal in all processes, or [B, L / P, out_features] with
  /// sequence_parallel.
  /// Throws c10::DistError when a process fails.
  at::Tensor forward(const at::Tensor& x) const;

  at::Tensor enter(const at::Tensor& x) const override;
  at::Tensor project(const at::Tensor& x) const override;

 private:
  bool input_is_parallel_ = true;
};
TORCH_MODULE(RowParallelLinear);

}  // namespace heed::distributed
