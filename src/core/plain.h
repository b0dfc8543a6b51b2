#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include "core/tangents.h"

namespace heed::detail {

/// Whether calling a kernel does all that calling an operator would, but for autocast: tracing,
/// functorch and modes are off.
inline bool calls_reach_kernels() {
  const auto included = c10::impl::tls_local_dispatch_key_set().included_;
  return c10::default_included_set.has_all(included);
}

/// Whether it is a strided tensor on the CPU that nothing wraps and that carries no tangent.
inline bool is_plain(const at::Tensor& tensor) {
  static const c10::DispatchKeySet plain({c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView,
                                          c10::DispatchKey::AutogradCPU,
                                          c10::DispatchKey::AutocastCPU});
  return tensor.defined() && plain.has_all(tensor.key_set()) && !has_tangent(tensor);
}

}  // namespace heed::detail
