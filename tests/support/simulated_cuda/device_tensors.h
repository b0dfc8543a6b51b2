// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

/// For operators of the simulated device.

namespace heed::test {

/// A tensor of the CPU with these numbers in this memory.
at::Tensor on_host(const at::Tensor& tensor);
/// A copy on the device of a tensor of the CPU.
at::Tensor on_device(const at::Tensor& tensor);

/// The generator of the CPU that the device's generator draws from.
at::Generator& own_generator();
/// From the device's generator.
uint64_t draw_on_device();

void count_launch(const std::string& name);
/// The host waits for the device.
void count_wait(const std::string& name);

}  // namespace heed::test
