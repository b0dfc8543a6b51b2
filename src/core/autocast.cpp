// SPDX-License-Identifier: BSD-3-Clause
#include "core/autocast.h"

#include <ATen/autocast_mode.h>
#include <heed/autocast.h>

#include "core/error.h"

namespace heed {

Autocast::Autocast(c10::DeviceType device, c10::ScalarType dtype)
    : device_(device),
      previous_enabled_(at::autocast::is_autocast_enabled(device)),
      previous_dtype_(at::autocast::get_autocast_dtype(device)) {
  HEED_CHECK(dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kFloat,
             "Autocast: dtype ({}) must be BFloat16, Half or Float", c10::toString(dtype));
  at::autocast::increment_nesting();
  if (dtype != at::kFloat) at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::set_autocast_enabled(device, dtype != at::kFloat);
}

Autocast::~Autocast() {
  at::autocast::set_autocast_enabled(device_, previous_enabled_);
  at::autocast::set_autocast_dtype(device_, previous_dtype_);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}

namespace detail {

bool is_converted_by_autocast(const at::Tensor& tensor) {
  return is_autocast(tensor) && at::autocast::is_eligible(tensor, tensor.device().type());
}

at::Tensor cast_for_product(const at::Tensor& tensor) {
  if (!is_converted_by_autocast(tensor)) return tensor;
  const auto device = tensor.device().type();
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), tensor, device);
}

AutocastCall::AutocastCall(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const AttendOptions& options)
    : query(query), key(key), value(value), options(options) {
  const auto device = query.device().type();
  if (!at::autocast::is_eligible(query, device)) return;
  const auto dtype = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const at::Tensor& tensor) {
    return at::autocast::cached_cast(dtype, tensor, device);
  };
  this->query = cast(query);
  this->key = cast(key);
  this->value = cast(value);
  if (options.bias()) this->options.bias(cast(*options.bias()));
}

}  // namespace detail

}  // namespace heed
