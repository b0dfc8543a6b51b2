#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>
#include <heed/sharded_layers.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>
#include <typeinfo>
#include <vector>

#include "core/random_state.h"
#include "cpu/layers/linear.h"

namespace heed::detail {

/// The matrix product that computes input weight^T + bias.
enum class LinearProduct {
  libtorch,   ///< at::linear
  pointwise,  ///< oneDNN's product: the operator mkldnn::_linear_pointwise
  few_rows,   ///< heed's kernel for up to 8 rows
  small,      ///< heed's kernel for little work
};

/// Returns the product that `linear` chooses for these tensors on this processor, by the rules in
/// docs/kernels.md, "Projections".
LinearProduct linear_product(const at::Tensor& input, const at::Tensor& weight,
                             const at::Tensor& bias);

/// Computes what at::linear computes, with the same derivatives and errors. `bias` may be
/// undefined.
HEED_API at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias = {});

/// Computes `linear` for several layers with the same input. If all of them choose the same
/// product, they are computed together, and the gradient of the input is one sum.
std::vector<at::Tensor> linear_together(const at::Tensor& input,
                                        const std::vector<LinearParameters>& layers);

/// The part of a Linear that this process holds; null if it holds the whole Linear.
inline const ShardedLinearImpl* sharded(const torch::nn::Linear& linear) {
  // A cast that fails costs 11 ns, a comparison of types 1 ns.
  const auto& layer = *linear;
  const bool is_whole = typeid(layer) == typeid(torch::nn::LinearImpl);
  return is_whole ? nullptr : dynamic_cast<const ShardedLinearImpl*>(&layer);
}

/// Applies a module's Linear. Unlike LinearImpl::forward, it works in a const module.
inline at::Tensor project(const torch::nn::Linear& linear, const at::Tensor& input) {
  if (const auto* shard = sharded(linear)) return shard->project(input);
  return detail::linear(input, linear->weight, linear->bias);
}

/// Applies several Linears to the same input, together if that is possible; see linear_together.
std::vector<at::Tensor> project_together(const std::vector<torch::nn::Linear>& linears,
                                         const at::Tensor& input);

/// Prepares the input [B, L, E] for `linear` and the projections that share it; see
/// ShardedLinearImpl::enter.
inline at::Tensor enter(const torch::nn::Linear& linear, const at::Tensor& input) {
  const auto* shard = sharded(linear);
  return shard ? shard->enter(input) : input;
}

/// The number of processes among which the sequence is split; see
/// ShardedLinearImpl::sequence_parts.
inline int64_t sequence_parts(const torch::nn::Linear& linear) {
  const auto* shard = sharded(linear);
  return shard ? shard->sequence_parts() : 1;
}

/// While this object exists, random numbers differ between the processes that hold parts of a
/// layer. Has no effect if `shard` is null or `probability` is 0.
class OwnRandomNumbers {
 public:
  OwnRandomNumbers(const ShardedLinearImpl* shard, at::Device device, double probability) {
    if (shard != nullptr && probability > 0.0) stream_.emplace(device, shard->rank());
  }

 private:
  std::optional<RandomStream> stream_;
};

}  // namespace heed::detail
