#pragma once

#include <ATen/ops/linear.h>
#include <torch/nn/modules/linear.h>

#include <memory>

namespace heed::detail {

inline torch::nn::Linear make_linear(int64_t in, int64_t out, bool bias) {
  return std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(in, out).bias(bias));
}

/// Applies a module's Linear where the module is const.
inline at::Tensor project(const torch::nn::Linear& linear, const at::Tensor& input) {
  return at::linear(input, linear->weight, linear->bias);
}

}  // namespace heed::detail
