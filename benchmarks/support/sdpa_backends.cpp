// SPDX-License-Identifier: BSD-3-Clause
#include "support/sdpa_backends.h"

#include <ATen/Context.h>

namespace heed::bench {

const char* name_of(SdpaBackend backend) {
  switch (backend) {
    case SdpaBackend::flash:
      return "SDPA flash";
    case SdpaBackend::efficient:
      return "SDPA efficient";
    case SdpaBackend::cudnn:
      return "SDPA cuDNN";
    default:
      return "SDPA math";
  }
}

OnlySdpaBackend::OnlySdpaBackend(SdpaBackend backend) : before_(allowed()) {
  std::array<bool, 4> only{};
  only[static_cast<size_t>(backend)] = true;
  allow(only);
}

OnlySdpaBackend::~OnlySdpaBackend() { allow(before_); }

std::array<bool, 4> OnlySdpaBackend::allowed() {
  const auto& context = at::globalContext();
  return {context.userEnabledFlashSDP(), context.userEnabledMemEfficientSDP(),
          context.userEnabledCuDNNSDP(), context.userEnabledMathSDP()};
}

void OnlySdpaBackend::allow(const std::array<bool, 4>& backends) {
  auto& context = at::globalContext();
  context.setSDPUseFlash(backends[0]);
  context.setSDPUseMemEfficient(backends[1]);
  context.setSDPUseCuDNN(backends[2]);
  context.setSDPUseMath(backends[3]);
}

}  // namespace heed::bench
