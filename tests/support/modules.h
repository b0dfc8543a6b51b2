// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "support/inputs.h"
#include "support/reference.h"

namespace heed::test {

/// The float64 value of a Linear.
inline at::Tensor linear64(const torch::nn::Linear& linear, const at::Tensor& input) {
  std::optional<at::Tensor> bias;
  if (linear->bias.defined()) bias = linear->bias.to(at::kDouble);
  return at::linear(input.to(at::kDouble), linear->weight.to(at::kDouble), bias);
}

/// [B, L, heads * D] to [B, heads, L, D].
inline at::Tensor split_heads(const at::Tensor& packed, int64_t heads) {
  return packed.unflatten(2, {heads, packed.size(2) / heads}).transpose(1, 2);
}

inline at::Tensor merge_heads(const at::Tensor& heads) { return heads.transpose(1, 2).flatten(2); }

/// The outputs of forward_cached for parts of `chunk` tokens of x, put together.
template <typename Module, typename Cache, typename... Others>
at::Tensor in_chunks(Module&& module, const at::Tensor& x, Cache& cache, int64_t chunk,
                     const Others&... others) {
  std::vector<at::Tensor> outputs;
  for (const auto& part : x.split(chunk, 1)) {
    outputs.push_back(module->forward_cached(part, cache, others...));
  }
  return at::cat(outputs, 1);
}

/// A clone, there and in that dtype.
template <typename Module>
Module copy_of(const Module& module, at::Device device, at::ScalarType dtype) {
  Module copy(std::dynamic_pointer_cast<typename Module::Impl>(module->clone()));
  copy->to(device, dtype);
  return copy;
}

/// How a module prints itself, without its children.
inline std::string printed(const torch::nn::Module& module) {
  std::ostringstream stream;
  module.pretty_print(stream);
  return stream.str();
}

template <typename Impl>
std::string printed(const torch::nn::ModuleHolder<Impl>& module) {
  return printed(*module);
}

}  // namespace heed::test
