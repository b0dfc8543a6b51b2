#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "ops/boxed.h"

/// Under autocast, query, key and value are converted, as those of
/// at::scaled_dot_product_attention.

namespace heed::detail {

namespace {

template <c10::DeviceType device>
void call_converted(const c10::OperatorHandle& op, Stack* stack) {
  constexpr size_t kConverted = 3;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto dtype = at::autocast::get_autocast_dtype(device);
  auto argument = stack->end() - static_cast<std::ptrdiff_t>(argument_count(op));
  for (size_t i = 0; i < kConverted; ++i, ++argument) {
    *argument = at::autocast::cached_cast(dtype, argument->toTensor(), device);
  }
  op.callBoxed(*stack);
}

template <c10::DeviceType device>
void register_converted(torch::Library& library) {
  for (const auto* name : {"attend", "attend_with_lse", "attend_varlen"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_converted<device>>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(heed, AutocastCPU, library) { register_converted<at::kCPU>(library); }

TORCH_LIBRARY_IMPL(heed, AutocastCUDA, library) { register_converted<at::kCUDA>(library); }

}  // namespace heed::detail
