// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace heed::detail {

/// The tensor on this device. The host does not wait for a CUDA device to receive a tensor of the
/// CPU.
at::Tensor to_device(const at::Tensor& tensor, at::Device device);
/// The numbers as an int64 tensor [n] on this device.
at::Tensor to_device(const std::vector<int64_t>& numbers, at::Device device);

/// The numbers of an int64 tensor; waits for its device.
std::vector<int64_t> to_host(const at::Tensor& numbers);

}  // namespace heed::detail
