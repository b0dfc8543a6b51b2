// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

/// The attention of CUDA's kernels, as LibTorch's sources say that they compute it, with what they
/// refuse. Comments in the kernels name the sources: FA is flash_attn/flash_api.cpp, ATT
/// attention.cu and BWD attention_backward.cu of PyTorch 2.6 where no other version stands, KF the
/// 2.13 mem_eff_attention/kernel_forward.h, KB kernel_backward.h beside it, SDPU sdp_utils.cpp,
/// UCPP sdp_utils_cpp.h, META the 2.13 _meta_registrations.py, BIN a text in libtorch_cuda.so
/// of 2.13. What begins with "simulated CUDA" is no refusal there, but wrong numbers.

namespace heed::test {

/// The ways in which a kernel can be wrong.
enum class KernelFault {
  none,
  window,    ///< one key less
  top_left,  ///< causal from the first key
  nan_rows,  ///< NaN where a query sees no key
  throws,
  no_memory,  ///< of the host
};

/// Breaks a kernel while it lives, such as "aten::_flash_attention_forward".
class BrokenKernel {
 public:
  BrokenKernel(const std::string& kernel, KernelFault fault);
  ~BrokenKernel();
  BrokenKernel(const BrokenKernel&) = delete;
  BrokenKernel& operator=(const BrokenKernel&) = delete;

 private:
  const std::string kernel_;
};

/// While it lives, SDPA says that it chooses this kernel for every call: 3 is cuDNN's, which the
/// simulated device lacks.
class PreferredSdpaKernel {
 public:
  explicit PreferredSdpaKernel(int64_t choice);
  ~PreferredSdpaKernel();
  PreferredSdpaKernel(const PreferredSdpaKernel&) = delete;
  PreferredSdpaKernel& operator=(const PreferredSdpaKernel&) = delete;
};

}  // namespace heed::test
