// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <string>

/// A CUDA device that the CPU plays, for a LibTorch without CUDA. Where this library is loaded,
/// tensors can be on `cuda:0`; LibTorch's CPU kernels compute what they hold. As on a real device,
///
/// - a loop or a kernel of ours that touches a tensor's memory crashes: only operators can read it;
/// - tensors of two devices in one operator are an error;
/// - memory that was not written to holds NaN;
/// - kernels of attention that only CUDA has refuse what theirs refuse (attention_kernels.cpp).
///
/// Memory of the host can be pinned, and graph.h captures graphs.

namespace heed::test {

/// The work that a GPU would have done.
struct DeviceWork {
  std::map<std::string, int64_t> operators;  ///< how often each ran on the device
  std::map<std::string, int64_t> waits;      ///< operators for which the host waits for the device
  int64_t peak_bytes = 0;                    ///< at once, in what was allocated since the start

  int64_t launches() const;
  int64_t synchronizations() const;
};

/// Counts the work of the device from its construction on.
class WorkOfDevice {
 public:
  WorkOfDevice();
  /// Until now.
  DeviceWork work() const;

 private:
  DeviceWork before_;
};

}  // namespace heed::test
