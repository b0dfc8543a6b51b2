// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <heed/rotary_embedding.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace heed::detail {

inline c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// The key by which angles are remembered: their positions and dtype, and the stream that computed
/// them, because they are ready only on that stream.
struct AngleRange {
  int64_t first, count;
  at::ScalarType dtype;
  c10::Stream stream;
  bool inference;

  bool operator==(const AngleRange& other) const {
    return first == other.first && count == other.count && dtype == other.dtype &&
           stream == other.stream && inference == other.inference;
  }
};

/// Keeps copies of one tensor of the CPU on other devices.
class CopiesOnDevices {
 public:
  /// Returns the copy on a device. The first call for a device waits for it, so that the copy is
  /// ready on every stream.
  at::Tensor copy(const at::Tensor& tensor, at::Device device) {
    if (device == tensor.device()) return tensor;
    const std::scoped_lock lock(mutex_);
    for (const auto& copy : copies_) {
      if (copy.device() == device) return copy;
    }
    const c10::InferenceMode off(false);
    return copies_.emplace_back(tensor.to(device));
  }

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> copies_;
};

/// Results that a rotary embedding keeps because it may need them again.
class RememberedAngles {
 public:
  /// Finds or keeps angles. Only those of the last request of any thread are kept.
  /// @{
  std::optional<RotaryAngles> find(const AngleRange& range) const {
    const std::scoped_lock lock(mutex_);
    return range_ == range ? std::optional(angles_) : std::nullopt;
  }

  void keep(const AngleRange& range, const RotaryAngles& angles) {
    const std::scoped_lock lock(mutex_);
    range_ = range;
    angles_ = angles;
  }
  /// @}

  /// Copies of the frequencies.
  CopiesOnDevices copies;

 private:
  mutable std::mutex mutex_;
  std::optional<AngleRange> range_;
  RotaryAngles angles_;
};

}  // namespace heed::detail
