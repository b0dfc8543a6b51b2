#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "attend/paths/paths.h"

namespace heed::detail {

/// While this object exists, autograd records, also in the kernel of an operator, which runs where
/// autograd has been passed.
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

/// A tensor that stands for `tensor` in a graph of its own. If its gradient is wanted, it requires
/// it and joins `inputs`.
at::Tensor stand_in(const at::Tensor& tensor, bool is_wanted, std::vector<at::Tensor>& inputs);

using AttendFunction = Attended (*)(const Problem&);

/// A call on tensors that stand for the problem's in a graph of their own.
struct SecondPass {
  std::vector<at::Tensor> inputs;  // those by which it is differentiated
  Attended attended;
};

/// Calls `attend` again, recorded.
SecondPass second_pass(AttendFunction attend, const Problem& problem,
                       const WantedGradients& wanted);

/// What autograd finds for those results, the output and the lse, whose gradients are defined.
Gradients differentiate(const SecondPass& pass, const WantedGradients& wanted,
                        const std::vector<at::Tensor>& of_results, bool create_graph = false);

}  // namespace heed::detail
