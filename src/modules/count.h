// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <initializer_list>
#include <limits>

#include "core/seen_tensors.h"
#include "cpu/layers/packed_weight.h"

namespace heed::detail {

/// An integer whose sums and products are the largest int64_t where they would overflow.
class Count {
 public:
  /* implicit */ Count(int64_t value) : value_(value) {}
  int64_t value() const { return value_; }
  friend Count operator+(Count a, Count b) {
    int64_t sum;
    return __builtin_add_overflow(a.value_, b.value_, &sum) ? kLargest : sum;
  }
  friend Count operator*(Count a, Count b) {
    int64_t product;
    return __builtin_mul_overflow(a.value_, b.value_, &product) ? kLargest : product;
  }

 private:
  static constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  int64_t value_;
};

/// The elements of parameters, and their memory.
struct ParameterSize {
  int64_t count = 0, bytes = 0;
};

/// The size of a parameter, or of the module's parameters, that are not in `seen`. Adds them to
/// `seen`.
/// @{
inline ParameterSize parameter_size(const at::Tensor& parameter, SeenTensors& seen) {
  if (!seen.add(parameter)) return {};
  const auto* packed = packed_weight_of(parameter);
  return {parameter.numel(), packed ? packed->bytes() : static_cast<int64_t>(parameter.nbytes())};
}
inline ParameterSize parameter_size(const torch::nn::Module& module, SeenTensors& seen) {
  ParameterSize size;
  for (const auto& parameter : module.parameters()) {
    const auto own = parameter_size(parameter, seen);
    size.count += own.count;
    size.bytes += own.bytes;
  }
  return size;
}
/// @}

inline int64_t parameter_count(const torch::nn::Module& module) {
  SeenTensors seen;
  return parameter_size(module, seen).count;
}

/// The number of elements of the weights of all layers that are not empty.
inline int64_t weight_count(std::initializer_list<const torch::nn::Linear*> layers) {
  int64_t count = 0;
  for (const auto* layer : layers) {
    if (*layer) count += (*layer)->weight.numel();
  }
  return count;
}

}  // namespace heed::detail
