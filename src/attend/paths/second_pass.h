// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "attend/paths/paths.h"

namespace heed::detail {

/// While this object exists, autograd records. This works also inside the kernel of an operator,
/// for which the dispatcher has switched autograd off.
class RecordingScope {
 public:
  RecordingScope() : RecordingScope(c10::impl::tls_local_dispatch_key_set()) {}

 private:
  explicit RecordingScope(const c10::impl::LocalDispatchKeySet& keys)
      : keys_(keys.included_ | c10::default_included_set,
              keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView) {}

  const at::AutoGradMode mode_{true};
  const c10::impl::ForceDispatchKeyGuard keys_;
};

/// Returns a detached view of `tensor`, for a graph that is separate from the caller's. If
/// `is_wanted`, the view requires grad and is added to `inputs`.
at::Tensor stand_in(const at::Tensor& tensor, bool is_wanted, std::vector<at::Tensor>& inputs);

using AttendFunction = Attended (*)(const Problem&);

/// A call of `attend` that was computed again on stand-ins for the problem's tensors, and recorded
/// in a separate graph.
struct SecondPass {
  std::vector<at::Tensor> inputs;  // stand-ins of the tensors whose gradients are wanted
  Attended attended;
};

/// Computes the problem with `attend` on stand-ins, and records it.
SecondPass second_pass(AttendFunction attend, const Problem& problem,
                       const WantedGradients& wanted);

/// Returns the wanted gradients from `of_results`, the gradients of the output and the lse. These
/// may be undefined.
Gradients differentiate(const SecondPass& pass, const WantedGradients& wanted,
                        const std::vector<at::Tensor>& of_results, bool create_graph = false);

}  // namespace heed::detail
