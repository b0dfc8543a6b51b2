#include "core/to_device.h"

#include <ATen/functorch/TensorWrapper.h>
#include <ATen/ops/tensor.h>

namespace heed::detail {

at::Tensor to_device(const at::Tensor& tensor, at::Device device) {
  if (tensor.device() == device) return tensor;
  if (!device.is_cuda() || !tensor.is_cpu()) return tensor.to(device);
  // From other memory, the device copies before the call returns.
  return tensor.pin_memory().to(device, /*non_blocking=*/true);
}

at::Tensor to_device(const std::vector<int64_t>& numbers, at::Device device) {
  return to_device(at::tensor(numbers, at::kLong), device);
}

std::vector<int64_t> to_host(const at::Tensor& numbers) {
  auto own = numbers;
  // Transforms of torch.func hide the numbers from whoever does not differentiate by them.
  while (const auto* wrapper = at::functorch::maybeGetTensorWrapper(own)) own = wrapper->value();
  const auto host = to_device(own, at::kCPU).contiguous();
  const auto* first = host.const_data_ptr<int64_t>();
  return {first, first + host.numel()};
}

}  // namespace heed::detail
