// SPDX-License-Identifier: BSD-3-Clause
#include "core/to_device.h"

#include <ATen/functorch/TensorWrapper.h>
#include <ATen/ops/tensor.h>

namespace heed::detail {

at::Tensor to_device(const at::Tensor& tensor, at::Device device) {
  if (tensor.device() == device) return tensor;
  if (!device.is_cuda() || !tensor.is_cpu()) return tensor.to(device);
  // Only from pinned memory does the device copy after the call has returned.
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

at::Tensor to_device(const std::vector<int64_t>& numbers, at::Device device) {
  return to_device(at::tensor(numbers, at::kLong), device);
}

std::vector<int64_t> to_host(const at::Tensor& numbers) {
  auto own = numbers;
  // torch.func.grad wraps tensors; the innermost one has the numbers.
  while (const auto* wrapper = at::functorch::maybeGetTensorWrapper(own)) own = wrapper->value();
  const auto host = to_device(own, at::kCPU).contiguous();
  const auto* first = host.const_data_ptr<int64_t>();
  return {first, first + host.numel()};
}

}  // namespace heed::detail
