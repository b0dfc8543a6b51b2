#pragma once

#include <ATen/ops/linear.h>
#include <torch/nn/modules/linear.h>

namespace heed::detail {

inline torch::nn::Linear make_linear(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

/// Applies a module's Linear where the module is const.
inline at::Tensor project(const torch::nn::Linear& linear, const at::Tensor& input) {
  return at::linear(input, linear->weight, linear->bias);
}

}  // namespace heed::detail
