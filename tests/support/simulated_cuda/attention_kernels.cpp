// SPDX-License-Identifier: BSD-3-Clause
#include "support/simulated_cuda/attention_kernels.h"

#include <map>

#include "support/simulated_cuda/packed_attention.h"

namespace heed::test {

namespace {

std::map<std::string, KernelFault>& faults() {
  static auto* const instance = new std::map<std::string, KernelFault>;
  return *instance;
}

}  // namespace

KernelFault kernels::fault_of(const std::string& kernel) {
  const auto found = faults().find(kernel);
  return found == faults().end() ? KernelFault::none : found->second;
}

BrokenKernel::BrokenKernel(const std::string& kernel, KernelFault fault) : kernel_(kernel) {
  faults()[kernel_] = fault;
}

BrokenKernel::~BrokenKernel() { faults().erase(kernel_); }

}  // namespace heed::test
