// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace heed::bench {

/// The kernels among which at::scaled_dot_product_attention chooses on a GPU.
enum class SdpaBackend { flash, efficient, cudnn, math };

inline constexpr std::array<SdpaBackend, 4> kSdpaBackends = {
    SdpaBackend::flash, SdpaBackend::efficient, SdpaBackend::cudnn, SdpaBackend::math};

const char* name_of(SdpaBackend backend);

/// While it lives, SDPA has this choice alone, in the whole process: where the backend does not
/// take a call, SDPA throws.
class OnlySdpaBackend {
 public:
  explicit OnlySdpaBackend(SdpaBackend backend);
  ~OnlySdpaBackend();
  OnlySdpaBackend(const OnlySdpaBackend&) = delete;
  OnlySdpaBackend& operator=(const OnlySdpaBackend&) = delete;

 private:
  static std::array<bool, 4> allowed();
  static void allow(const std::array<bool, 4>& backends);

  const std::array<bool, 4> before_;
};

}  // namespace heed::bench
