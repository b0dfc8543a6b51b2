#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include "core/tangents.h"

namespace heed::detail {

/// Whether calling a kernel does all that calling an operator would, but for autocast: tracing,
/// functorch and modes are off.
inline bool calls_reach_kernels() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return c10::default_included_set.has_all(keys.included_ - keys.excluded_);
}

/// Whether it is undefined, or has memory of its own or none at all: not a tensor of functorch, nor
/// one that Python handles.
inline bool is_unwrapped(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kWrapping(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
       c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchGradWrapper,
       c10::DispatchKey::FuncTorchBatched});
  return !tensor.defined() || !tensor.key_set().has_any(kWrapping);
}

/// Whether it is a strided tensor on the CPU that nothing wraps and that carries no tangent.
inline bool is_plain(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kPlain({c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView,
                                        c10::DispatchKey::AutogradCPU,
                                        c10::DispatchKey::AutocastCPU});
  return tensor.defined() && kPlain.has_all(tensor.key_set()) && !has_tangent(tensor);
}

}  // namespace heed::detail
