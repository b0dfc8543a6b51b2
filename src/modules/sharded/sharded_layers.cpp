// SPDX-License-Identifier: BSD-3-Clause
#include <heed/sharded_layers.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "core/error.h"

namespace heed {

namespace {

thread_local bool whole_sequence = false;

at::Tensor narrowed(const at::Tensor& whole, const TensorShard& shard) {
  return whole.narrow(shard.dim, shard.first, shard.size);
}

/// An uninitialized whole tensor, whose part `shard` has the shape of `part`.
at::Tensor empty_whole(const at::Tensor& part, const TensorShard& shard) {
  auto sizes = part.sizes().vec();
  sizes[static_cast<size_t>(shard.dim)] = shard.whole;
  return at::empty(sizes, part.options());
}

}  // namespace

WholeSequence::WholeSequence(bool active) : previous_(whole_sequence) { whole_sequence = active; }

WholeSequence::~WholeSequence() { whole_sequence = previous_; }

bool WholeSequence::is_active() { return whole_sequence; }

ShardedLinearImpl::ShardedLinearImpl(const torch::nn::LinearImpl& whole, const TensorShard& shard)
    : torch::nn::LinearImpl(whole), shard(shard) {
  detail::keep_shard(weight, shard);
  if (bias.defined() && shard.dim == 0) detail::keep_shard(bias, shard);
  options.in_features(weight.size(1)).out_features(weight.size(0));
}

std::shared_ptr<torch::nn::Module> ShardedLinearImpl::clone(
    const std::optional<at::Device>& /*device*/) const {
  detail::refuse_clone();
}

void ShardedLinearImpl::initialize(const std::function<void(torch::nn::LinearImpl&)>& draw) {
  const at::NoGradGuard no_grad;
  torch::nn::LinearImpl whole(*this);
  whole.weight = empty_whole(weight, shard);
  const bool bias_is_split = bias.defined() && shard.dim == 0;
  if (bias.defined()) whole.bias = bias_is_split ? empty_whole(bias, shard) : at::empty_like(bias);
  draw(whole);
  weight.copy_(narrowed(whole.weight, shard));
  if (bias.defined()) bias.copy_(bias_is_split ? narrowed(whole.bias, shard) : whole.bias);
}

ShardedEmbeddingImpl::ShardedEmbeddingImpl(const torch::nn::EmbeddingImpl& whole,
                                           const TensorShard& shard)
    : torch::nn::EmbeddingImpl(whole), shard(shard) {
  detail::keep_shard(weight, shard);
  options.num_embeddings(shard.size);
}

std::shared_ptr<torch::nn::Module> ShardedEmbeddingImpl::clone(
    const std::optional<at::Device>& /*device*/) const {
  detail::refuse_clone();
}

void ShardedEmbeddingImpl::initialize(const std::function<void(at::Tensor&)>& draw) {
  const at::NoGradGuard no_grad;
  auto whole = empty_whole(weight, shard);
  draw(whole);
  weight.copy_(narrowed(whole, shard));
}

namespace detail {

void keep_shard(at::Tensor& tensor, const TensorShard& shard) {
  // Copied, because a view would keep the whole tensor in memory.
  tensor.set_data(narrowed(tensor.detach(), shard).clone(at::MemoryFormat::Contiguous));
  tensor.mutable_grad() = at::Tensor();
}

void refuse_clone() {
  HEED_CHECK(false, "clone: module must not be sharded: clone the whole module before parallelize");
}

}  // namespace detail

}  // namespace heed
