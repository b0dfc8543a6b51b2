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

/// What computes input weight^T + bias.
enum class LinearProduct {
  libtorch,   ///< at::linear
  pointwise,  ///< oneDNN's product: the operator mkldnn::_linear_pointwise
  few_rows,   ///< heed's kernel for up to 8 rows
  small,      ///< heed's kernel for little work
};

/// The choice that `linear` makes: the fastest product of these tensors here.
LinearProduct linear_product(const at::Tensor& input, const at::Tensor& weight,
                             const at::Tensor& bias);

/// What at::linear computes, with its derivatives and errors. `bias` may be undefined.
HEED_API at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias = {});

/// `linear` of each layer with the same input, at once where that is faster: the gradient of the
/// input is then one sum.
std::vector<at::Tensor> linear_together(const at::Tensor& input,
                                        const std::vector<LinearParameters>& layers);

/// Null if the process holds the whole Linear.
inline const ShardedLinearImpl* sharded(const torch::nn::Linear& linear) {
  // A cast that fails costs 11 ns, a comparison of types 1 ns.
  const auto& layer = *linear;
  const bool is_whole = typeid(layer) == typeid(torch::nn::LinearImpl);
  return is_whole ? nullptr : dynamic_cast<const ShardedLinearImpl*>(&layer);
}

/// Applies a module's Linear where the module is const.
inline at::Tensor project(const torch::nn::Linear& linear, const at::Tensor& input) {
  if (const auto* shard = sharded(linear)) return shard->project(input);
  return detail::linear(input, linear->weight, linear->bias);
}

/// The same for layers that share their input.
std::vector<at::Tensor> project_together(const std::vector<torch::nn::Linear>& linears,
                                         const at::Tensor& input);

/// Input [B, L, E] as `linear` and the projections beside it take it; see
/// ShardedLinearImpl::enter.
inline at::Tensor enter(const torch::nn::Linear& linear, const at::Tensor& input) {
  const auto* shard = sharded(linear);
  return shard ? shard->enter(input) : input;
}

/// See ShardedLinearImpl::sequence_parts.
inline int64_t sequence_parts(const torch::nn::Linear& linear) {
  const auto* shard = sharded(linear);
  return shard ? shard->sequence_parts() : 1;
}

/// While it exists, random numbers differ between the processes that hold parts, if `shard` is not
/// null and dropout with `probability` needs any.
class OwnRandomNumbers {
 public:
  OwnRandomNumbers(const ShardedLinearImpl* shard, at::Device device, double probability) {
    if (shard != nullptr && probability > 0.0) stream_.emplace(device, shard->rank());
  }

 private:
  std::optional<RandomStream> stream_;
};

}  // namespace heed::detail
