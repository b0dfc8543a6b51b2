// SPDX-License-Identifier: BSD-3-Clause
#include <heed/distributed/parallel_linear.h>
#include <heed/distributed/vocab_parallel.h>

#include <utility>

#include "core/check_memory.h"
#include "core/checks.h"
#include "distributed/differentiable.h"
#include "distributed/even_shard.h"
#include "modules/layers/linear.h"

namespace heed::distributed {

namespace {

constexpr auto kColumn = "ColumnParallelLinear";
constexpr auto kRow = "RowParallelLinear";
constexpr auto kSequenceParallel = "sequence_parallel";
constexpr int64_t kSequence = 1;  // of x [B, L, E]

template <typename Options>
torch::nn::LinearOptions linear_options(const char* function, const Options& options) {
  const auto in = options.in_features(), out = options.out_features();
  heed::detail::check_positive(function, "in_features", in);
  heed::detail::check_positive(function, "out_features", out);
  heed::detail::check_memory(function, "weight", {out, in}, at::kFloat);
  return torch::nn::LinearOptions(in, out).bias(options.bias());
}

void check_length(const at::Tensor& x, int64_t parts) {
  HEED_CHECK(x.defined() && x.dim() == 3, "{}: x must be [B, L, E]", kSequenceParallel);
  HEED_CHECK(x.size(kSequence) % parts == 0,
             "{}: L ({}) must be a multiple of the number of processes ({})", kSequenceParallel,
             x.size(kSequence), parts);
}

void print(std::ostream& stream, const char* name, const ShardedLinearImpl& linear) {
  const auto sizes = linear.weight.sizes();
  const auto size = [&](int64_t dim) {
    return dim == linear.shard.dim ? fmt::format("{} of {}", sizes[dim], linear.shard.whole)
                                   : fmt::format("{}", sizes[dim]);
  };
  stream << fmt::format("heed::distributed::{}(in_features={}, out_features={}, bias={})", name,
                        size(1), size(0), linear.bias.defined());
}

}  // namespace

ParallelLinearImpl::ParallelLinearImpl(const torch::nn::LinearImpl& whole, const TensorShard& shard,
                                       ProcessGroup group, bool sequence_parallel)
    : ShardedLinearImpl(whole, shard),
      group_(std::move(group)),
      sequence_parallel_(sequence_parallel) {}

at::Tensor ParallelLinearImpl::enter_whole(const at::Tensor& x) const {
  return detail::sum_gradient(x, group_, kColumn);
}

at::Tensor ParallelLinearImpl::enter_parameter(const at::Tensor& parameter) const {
  return sequence_parts() == 1 ? parameter
                               : detail::sum_gradient(parameter, group_, kSequenceParallel);
}

int64_t ParallelLinearImpl::sequence_parts() const {
  return sequence_parallel_ && !WholeSequence::is_active() ? group_->getSize() : 1;
}

at::Tensor ParallelLinearImpl::split_sequence(const at::Tensor& x) const {
  const auto parts = sequence_parts();
  if (parts == 1) return x;
  check_length(x, parts);
  return detail::split(x, kSequence, group_, kSequenceParallel);
}

at::Tensor ParallelLinearImpl::join_sequence(const at::Tensor& x) const {
  return sequence_parts() == 1 ? x : detail::gather(x, kSequence, group_, kSequenceParallel);
}

int64_t ParallelLinearImpl::rank() const { return group_->getRank(); }

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const ColumnParallelLinearOptions& options,
                                                   const ProcessGroup& group)
    : ColumnParallelLinearImpl(
          torch::nn::LinearImpl(linear_options(kColumn, options)),
          detail::even_shard(kColumn, "out_features", options.out_features(), 0, group), group,
          options.sequence_parallel()) {
  gather_output_ = options.gather_output();
}

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const torch::nn::LinearImpl& whole,
                                                   const TensorShard& shard,
                                                   const ProcessGroup& group,
                                                   bool sequence_parallel)
    : ParallelLinearImpl(whole, shard, group, sequence_parallel) {}

void ColumnParallelLinearImpl::pretty_print(std::ostream& stream) const {
  print(stream, kColumn, *this);
}

at::Tensor ColumnParallelLinearImpl::enter(const at::Tensor& x) const {
  return sequence_parts() == 1 ? enter_whole(x)
                               : detail::gather_for_parts(x, kSequence, group_, kColumn);
}

at::Tensor ColumnParallelLinearImpl::project(const at::Tensor& x) const {
  if (shard.size * group_->getSize() == shard.whole) return heed::detail::linear(x, weight, bias);
  const auto copy = [&](const at::Tensor& parameter) {
    return detail::sum_gradient_of_copies(parameter, shard, group_, kColumn);
  };
  return heed::detail::linear(x, copy(weight), bias.defined() ? copy(bias) : bias);
}

at::Tensor ColumnParallelLinearImpl::loss(const at::Tensor& x, const at::Tensor& targets,
                                          const LinearCrossEntropyOptions& loss_options) const {
  auto with_bias = loss_options;
  if (bias.defined()) with_bias.bias(bias);
  return vocab_parallel_linear_cross_entropy(join_sequence(x).flatten(0, -2), weight,
                                             targets.flatten(), group_, with_bias);
}

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& x) const {
  const auto output = project(enter(x));
  return gather_output_ ? detail::gather(output, -1, group_, kColumn) : output;
}

RowParallelLinearImpl::RowParallelLinearImpl(const RowParallelLinearOptions& options,
                                             const ProcessGroup& group)
    : RowParallelLinearImpl(
          torch::nn::LinearImpl(linear_options(kRow, options)),
          detail::even_shard(kRow, "in_features", options.in_features(), 1, group), group,
          options.sequence_parallel()) {
  input_is_parallel_ = options.input_is_parallel();
}

RowParallelLinearImpl::RowParallelLinearImpl(const torch::nn::LinearImpl& whole,
                                             const TensorShard& shard, const ProcessGroup& group,
                                             bool sequence_parallel)
    : ParallelLinearImpl(whole, shard, group, sequence_parallel) {}

void RowParallelLinearImpl::pretty_print(std::ostream& stream) const { print(stream, kRow, *this); }

at::Tensor RowParallelLinearImpl::enter(const at::Tensor& x) const { return x; }

at::Tensor RowParallelLinearImpl::project(const at::Tensor& x) const {
  const bool is_split = sequence_parts() > 1;
  if (is_split) check_length(x, sequence_parts());
  const auto product = heed::detail::linear(x, weight);
  auto sum = is_split ? detail::sum_and_split(product, kSequence, group_, kRow)
                      : detail::sum_parts(product, group_, kRow);
  if (!bias.defined()) return sum;
  const auto added = is_split ? detail::sum_gradient(bias, group_, kRow) : bias;
  return sum + added.to(sum.scalar_type());  // the dtype of autocast
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& x) const {
  return project(input_is_parallel_ ? x : detail::split(x, -1, group_, kRow));
}

}  // namespace heed::distributed
