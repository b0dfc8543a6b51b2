// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <heed/attend_options.h>
#include <heed/export.h>

namespace heed::detail {

/// Whether autocast is on for the device of `tensor`, which may be undefined.
inline bool is_autocast(const at::Tensor& tensor) {
  const auto keys = tensor.key_set() & c10::autocast_dispatch_keyset;
  return !c10::impl::tls_local_dispatch_key_set().excluded_.has_all(keys);
}

/// Whether autocast is on for the device of `tensor`, and converts it.
bool is_converted_by_autocast(const at::Tensor& tensor);

/// `tensor` as autocast converts the input of a matrix product; itself where autocast is off.
at::Tensor cast_for_product(const at::Tensor& tensor);

/// The tensors of a call of attention, converted as autocast converts those of
/// at::scaled_dot_product_attention; a call in float64 is left as it is. Gradients pass through.
struct AutocastCall {
  HEED_API AutocastCall(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const AttendOptions& options);

  at::Tensor query, key, value;
  AttendOptions options;
};

/// Calls `function` with tensors converted as in AutocastCall. Autocast is off during the call,
/// because it would round the scores.
template <typename Function>
auto with_autocast(const Function& function, const at::Tensor& query, const at::Tensor& key,
                   const at::Tensor& value, const AttendOptions& options) {
  const AutocastCall call(query, key, value, options);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return function(call.query, call.key, call.value, call.options);
}

}  // namespace heed::detail
