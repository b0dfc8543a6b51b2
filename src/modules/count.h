#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <initializer_list>
#include <limits>

#include "core/seen_tensors.h"

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

/// The number of elements of the module's parameters that are not in `seen`. Adds them to `seen`.
inline int64_t parameter_count(const torch::nn::Module& module, SeenTensors& seen) {
  int64_t count = 0;
  for (const auto& parameter : module.parameters()) {
    if (seen.add(parameter)) count += parameter.numel();
  }
  return count;
}

inline int64_t parameter_count(const torch::nn::Module& module) {
  SeenTensors seen;
  return parameter_count(module, seen);
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
