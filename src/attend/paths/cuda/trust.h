#pragma once

#include "attend/paths/cuda/kernels.h"
#include "attend/paths/paths.h"

/// LibTorch may change its kernels. So each use of a kernel is checked where a process makes it
/// first: a small call of the same kind is compared with LibTorch's other operators.

namespace heed::detail {

/// The environment variable HEED_CUDA_ROUTES.
enum class CudaRoutes {
  fast,    ///< unset: every kernel that was right at its first use
  safe,    ///< "safe": at::scaled_dot_product_attention and operators alone
  verify,  ///< "verify": as fast, and each call's results are compared
};
CudaRoutes cuda_routes();

/// Whether a kernel computes such problems rightly. Warns once where it does not. The first
/// question of its kind waits for the device.
bool is_trusted(Kernel kernel, const Problem& problem);

/// Whether `actual` is within rounding of `expected`; waits for the device. Warns where it is not,
/// naming the kernel and `result`.
bool verify(Kernel kernel, const Problem& problem, const char* result, const at::Tensor& actual,
            const at::Tensor& expected);

/// Warns once that a kernel refused a problem of a kind that it computed rightly before.
void warn_of_refusal(Kernel kernel, const Problem& problem, const c10::Error& error);

/// Checks each use again, and warns again. For tests.
void forget_trust();

/// Where a kernel throws or, for "verify", differs: whether LibTorch's operators help.
enum class Help { none, operators };

/// How a kernel computes a problem, recorded for autograd. Without help, what it throws is thrown.
Attended attend_by(Kernel kernel, const Problem& problem, Help help);

}  // namespace heed::detail
