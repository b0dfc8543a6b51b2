// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "support/inputs.h"

namespace heed::test::of_linear {

/// The shape of an input, whose last size is the depth, and the number of outputs.
struct Size {
  std::vector<int64_t> input;
  int64_t outputs;

  int64_t depth() const { return input.back(); }
};

// For oneDNN's product, heed's in blocks and heed's for few rows.
inline const Size kProducts[] = {{{2, 20, 520}, 518}, {{2, 65, 257}, 259}, {{3, 640}, 320}};

// And what else a call can meet.
inline const Size kSizes[] = {{{2, 20, 520}, 518}, {{2, 65, 257}, 259}, {{3, 640}, 320},
                              {{600, 128}, 1024},  {{70, 512}, 128},    {{2, 3, 50, 192}, 192},
                              {{1, 640}, 320},     {{3, 1, 513}, 1030}, {{8, 96}, 200},
                              {{7, 1}, 1},         {{5, 33}, 3},        {{40}, 24},
                              {{9, 1}, 2}};

struct Tensors {
  at::Tensor input, weight, bias;
};

inline Tensors make_tensors(const Size& size, const at::TensorOptions& options,
                            bool with_bias = true) {
  return {uniform(size.input, options), uniform({size.outputs, size.depth()}, options),
          with_bias ? uniform({size.outputs}, options) : at::Tensor()};
}

inline Tensors as_leaves(const Tensors& tensors, at::ScalarType dtype) {
  const auto leaf = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.detach().to(dtype, false, /*copy=*/true).requires_grad_()
                            : tensor;
  };
  return {leaf(tensors.input), leaf(tensors.weight), leaf(tensors.bias)};
}

}  // namespace heed::test::of_linear
