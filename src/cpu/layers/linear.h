#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace heed::detail {

/// A layer: weight [N, K], and bias [N] or undefined.
struct LinearParameters {
  at::Tensor weight, bias;
};

// input weight^T + bias [.., N] of layers with the same input [.., K], in one parallel region.
// Tensors are on the CPU, not empty, and of the same type.

/// For 1 to 8 rows of float, bfloat16 or float16. Reads weights, whose rows are contiguous, once
/// and at the speed of memory.
std::vector<at::Tensor> linear_of_few_rows(const at::Tensor& input,
                                           const std::vector<LinearParameters>& layers);

/// For products of float so small that calls of operators count. The rows or the columns of each
/// weight are contiguous.
std::vector<at::Tensor> small_linear(const at::Tensor& input,
                                     const std::vector<LinearParameters>& layers);

}  // namespace heed::detail
