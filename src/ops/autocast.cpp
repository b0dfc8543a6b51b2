// SPDX-License-Identifier: BSD-3-Clause
#include "core/autocast.h"

#include <ATen/autocast_mode.h>

#include "core/dtypes.h"
#include "ops/boxed.h"

/// The operators under autocast. They convert the same tensors as heed's functions, but before
/// autograd, so that a compiler that traces a call sees the conversions. Operators of layers keep
/// the dtype of x, as heed's modules do.

namespace heed::detail {

namespace {

void call_without_autocast(const c10::OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  op.callBoxed(*stack);
}

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
  call_without_autocast(op, stack);
}

/// The query of attend_paged gets the dtype of the pages, unless these are quantized.
void call_paged_converted(const c10::OperatorHandle& op, Stack* stack) {
  auto* arguments = stack->data() + stack->size() - argument_count(op);
  const auto query = arguments[0].toTensor();
  const auto dtype = arguments[1].toTensor().scalar_type();
  if (query.is_floating_point() && is_attention_dtype(dtype)) arguments[0] = query.to(dtype);
  call_without_autocast(op, stack);
}

/// Converts x, weight and bias as autocast converts those of a Linear.
void call_loss_converted(const c10::OperatorHandle& op, Stack* stack) {
  auto* arguments = stack->data() + stack->size() - argument_count(op);
  const auto x = arguments[0].toTensor();
  const auto device = x.device().type();
  if (at::autocast::is_eligible(x, device)) {
    const auto dtype = at::autocast::get_autocast_dtype(device);
    const auto bias = op.schema().argumentIndexWithName("bias");
    TORCH_INTERNAL_ASSERT(bias.has_value(), "there is no bias");
    for (auto* argument : {arguments, arguments + 1, arguments + *bias}) {
      if (!argument->isTensor()) continue;
      *argument = at::autocast::cached_cast(dtype, argument->toTensor(), device);
    }
  }
  call_without_autocast(op, stack);
}

void register_converted(torch::Library& library) {
  for (const auto* name : {"attend", "attend_with_weights", "attend_with_lse", "attend_varlen",
                           "attend_varlen_with_lse"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_converted>());
  }
  library.impl("attend_paged", torch::CppFunction::makeFromBoxedFunction<&call_paged_converted>());
  library.impl("linear_cross_entropy",
               torch::CppFunction::makeFromBoxedFunction<&call_loss_converted>());
}

}  // namespace

TORCH_LIBRARY_IMPL(heed, AutocastCPU, library) { register_converted(library); }

TORCH_LIBRARY_IMPL(heed, AutocastCUDA, library) { register_converted(library); }

}  // namespace heed::detail
