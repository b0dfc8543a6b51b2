// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "cpu/isa/packed.h"

namespace heed::detail {

/// A layer: weight [N, K], and bias [N] or undefined.
struct LinearParameters {
  at::Tensor weight, bias;
};

// The first three functions return input weight^T + bias [.., N] for each layer, for one input
// [.., K], and compute all layers in one parallel region. Tensors are on the CPU, not empty, and of
// one dtype.

/// For 1 to 8 rows of float32, bfloat16 or float16. The rows of each weight are contiguous; they
/// are read once, at the speed of memory.
std::vector<at::Tensor> linear_of_few_rows(const at::Tensor& input,
                                           const std::vector<LinearParameters>& layers);

/// For float32. The rows or the columns of each weight are contiguous.
std::vector<at::Tensor> linear_in_blocks(const at::Tensor& input,
                                         const std::vector<LinearParameters>& layers);

/// For float32, bfloat16 or float16. The weights are packed tensors (packed_weight.h). Kernels, if
/// there are such, apply `function` to the outputs before they are rounded to their dtype.
std::vector<at::Tensor> linear_packed(const at::Tensor& input,
                                      const std::vector<LinearParameters>& layers,
                                      OutputFunction function = OutputFunction::identity);

/// sum [.., N], contiguous, += input weight^T, for tensors as above.
void add_linear_in_blocks(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& sum);

}  // namespace heed::detail
