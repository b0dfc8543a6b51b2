#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace heed::detail {

/// A copy of a tensor of the CPU. The host does not wait for a CUDA device to receive it.
at::Tensor to_device(const at::Tensor& host, at::Device device);
/// int64 [n].
at::Tensor to_device(const std::vector<int64_t>& numbers, at::Device device);

}  // namespace heed::detail
