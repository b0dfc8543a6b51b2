// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "attend/paths/cuda/kernels.h"
#include "attend/paths/paths.h"

/// Checks of LibTorch's kernels, which may change in any version. Before a process uses a kernel
/// for a kind of call for the first time, a small call of this kind is compared with LibTorch's
/// operators.

namespace heed::detail {

/// The values of the environment variable HEED_CUDA_ROUTES.
enum class CudaRoutes {
  fast,    ///< unset: kernels that were right at their first use
  safe,    ///< "safe": only at::scaled_dot_product_attention and operators
  verify,  ///< "verify": like fast, but the results of each call are compared
};
CudaRoutes cuda_routes();

/// Whether a kernel computes problems of this kind rightly. Warns once if it does not. The first
/// call for each kind waits for the device.
bool is_trusted(Kernel kernel, const Problem& problem);

/// Whether `actual` equals `expected` within rounding. If not, warns with the names of the kernel
/// and of `result`. Waits for the device.
bool verify(Kernel kernel, const Problem& problem, const char* result, const at::Tensor& actual,
            const at::Tensor& expected);

/// Warns once that a kernel refused a problem of a kind that it computed rightly before.
void warn_of_refusal(Kernel kernel, const Problem& problem, const c10::Error& error);

/// Forgets all checks and warnings, so that they are made again. For tests.
void forget_trust();

/// Whether LibTorch's operators compute gradients if a kernel throws or, with "verify", differs.
enum class Help { none, operators };

/// Computes a problem by a kernel, recorded for autograd. Errors of the forward pass are thrown,
/// and without help also those of the backward pass.
Attended attend_by(Kernel kernel, const Problem& problem, Help help);

}  // namespace heed::detail
