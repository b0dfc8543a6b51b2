#include "core/to_device.h"

#include <ATen/ops/tensor.h>

namespace heed::detail {

at::Tensor to_device(const at::Tensor& host, at::Device device) {
  // From other memory, the device copies before the call returns.
  return device.is_cuda() ? host.pin_memory().to(device, /*non_blocking=*/true) : host.to(device);
}

at::Tensor to_device(const std::vector<int64_t>& numbers, at::Device device) {
  return to_device(at::tensor(numbers, at::kLong), device);
}

}  // namespace heed::detail
