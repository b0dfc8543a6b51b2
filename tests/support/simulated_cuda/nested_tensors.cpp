// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace heed::test {

namespace {

/// LibTorch's kernels of nested tensors call operators of the memory that these share.
void run_as_nested_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                          torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::NestedTensorCPU), stack);
}

TORCH_LIBRARY_IMPL(_, NestedTensorCUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_as_nested_on_cpu>());
}

}  // namespace

}  // namespace heed::test
