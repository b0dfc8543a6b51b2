#include "core/autocast.h"

#include "ops/boxed.h"

/// The operators under autocast. They convert the same tensors as heed's functions, but before
/// autograd, so that a compiler that traces a call sees the conversions.

namespace heed::detail {

namespace {

void call_converted(const c10::OperatorHandle& op, Stack* stack) {
  auto* arguments = stack->data() + stack->size() - argument_count(op);
  const auto at_bias = op.schema().argumentIndexWithName("bias");
  auto* bias = at_bias ? arguments + *at_bias : nullptr;
  AttendOptions options;
  if (bias != nullptr && bias->isTensor()) options.bias(bias->toTensor());
  const AutocastCall call(arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toTensor(),
                          options);
  arguments[0] = call.query;
  arguments[1] = call.key;
  arguments[2] = call.value;
  if (bias != nullptr) *bias = call.options.bias();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  op.callBoxed(*stack);
}

void register_converted(torch::Library& library) {
  for (const auto* name : {"attend", "attend_with_lse", "attend_varlen"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_converted>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(heed, AutocastCPU, library) { register_converted(library); }

TORCH_LIBRARY_IMPL(heed, AutocastCUDA, library) { register_converted(library); }

}  // namespace heed::detail
