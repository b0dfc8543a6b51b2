// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include "core/tangents.h"

namespace heed::detail {

/// Whether a kernel can be called instead of an operator: tracing, functorch and modes are off.
/// Autocast is not considered.
inline bool calls_reach_kernels() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return c10::default_included_set.has_all(keys.included_ - keys.excluded_);
}

/// Whether a tensor is undefined or is not wrapped: neither functorch nor a Python subclass
/// handles its operators.
inline bool is_unwrapped(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kWrapping(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
       c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchGradWrapper,
       c10::DispatchKey::FuncTorchBatched});
  return !tensor.defined() || !tensor.key_set().has_any(kWrapping);
}

/// Whether a tensor is strided, on the CPU, not wrapped and without a tangent.
inline bool is_plain(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kPlain({c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView,
                                        c10::DispatchKey::AutogradCPU,
                                        c10::DispatchKey::AutocastCPU});
  return tensor.defined() && kPlain.has_all(tensor.key_set()) && !has_tangent(tensor);
}

}  // namespace heed::detail
