// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>

#include "attend/paths/cuda/operators.h"
#include "core/problem.h"

/// LibTorch's two kernels of attention for CUDA, behind one interface.

namespace heed::detail {

enum class Kernel {
  flash,      ///< FlashAttention-2: float16 and bfloat16
  efficient,  ///< memory-efficient attention: float32 too, and a bias
};

struct KernelResult {
  at::Tensor output;              // [B, H, L, Dv]
  at::Tensor lse;                 // float32, in the kernel's shape; see lse_of_rows
  std::array<at::Tensor, 2> rng;  // the state of dropout's random numbers
};

/// Calls the kernel for a problem that KernelForm made for it.
KernelResult kernel_forward(Kernel kernel, const Problem& problem);

/// The gradients of query, key, value and, if `of_bias`, bias.
std::array<at::Tensor, 4> kernel_backward(Kernel kernel, const Problem& problem,
                                          const KernelResult& result,
                                          const at::Tensor& output_gradient, bool of_bias);

/// The arguments of the kernel's operators.
/// @{
NamedValues forward_arguments(Kernel kernel, const Problem& problem);
NamedValues backward_arguments(Kernel kernel, const Problem& problem, const KernelResult& result,
                               const at::Tensor& output_gradient, bool of_bias);
/// @}

/// Converts a kernel's lse, log(sum(exp(score))) of each query, to [B, H, L]. For a query without
/// keys, flash has written inf and efficient 0.
at::Tensor lse_of_rows(const Problem& problem, const at::Tensor& lse);

}  // namespace heed::detail
