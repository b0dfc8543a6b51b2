// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include "cpu/isa/layers.h"
#include "cpu/tensor_rows.h"

/// The norms of rows by kernels, without autograd.

namespace heed::detail {

/// A norm over the last dimension.
struct NormParameters {
  bool centers;             ///< LayerNorm, which subtracts the mean; else RMSNorm
  at::Tensor weight, bias;  ///< [D]; `bias` may be undefined, and RMSNorm has none
  double eps;
  double offset;  ///< added to the weight
};

/// The scale of rows that the kernels of T take.
template <typename T>
NormScale<T> norm_scale(const NormParameters& norm) {
  return {norm.weight.const_data_ptr(),
          norm.weight.scalar_type() == c10::CppTypeToScalarType<T>::value,
          static_cast<T>(norm.offset), static_cast<T>(norm.eps)};
}

/// Rows [first, last) of a contiguous tensor [.., D].
inline Rows rows_of(const at::Tensor& tensor, int64_t first, int64_t last) {
  const auto columns = tensor.size(-1);
  return rows_at(tensor, first * columns, last - first, columns);
}

/// Whether there are kernels for x [.., D] and these parameters. Then the next functions take them,
/// if all tensors are contiguous.
bool kernels_normalize(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

at::Tensor normalize_rows(const at::Tensor& x, const NormParameters& norm);

struct SumAndNorm {
  at::Tensor sum;  ///< undefined unless it is kept
  at::Tensor normalized;
};

/// x + added, and its norm, in one pass over memory. Both have one shape and dtype.
SumAndNorm add_and_normalize(const at::Tensor& x, const at::Tensor& added,
                             const NormParameters& norm, bool keeps_sum);

}  // namespace heed::detail
