#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <heed/rotary_embedding.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/to_device.h"

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

/// The tokens that an append adds to one sequence of a cache.
struct AppendedSequence {
  int64_t name;
  int64_t cached, count;  // tokens that were cached before, and new tokens
  int64_t length;         // the largest position + 1; drafts may share a position
};

/// The angles of a step's tokens. Layers with the same rotary embedding compute them once.
class StepAngles {
 public:
  std::vector<AppendedSequence> sequences;

  RotaryAngles of(const RotaryEmbedding& rotary, const at::Tensor& positions,
                  at::ScalarType dtype) {
    const AngleRange range{0, positions.size(0), dtype, current_stream(positions.device()),
                           c10::InferenceMode::is_enabled()};
    if (rotary_ != rotary.ptr() || !(range_ == range)) {
      angles_ = rotary->depends_on_length()
                    ? rotary->angles(positions, lengths(positions.device()), dtype)
                    : rotary->angles(positions, dtype);
      rotary_ = rotary.ptr();
      range_ = range;
    }
    return angles_;
  }

 private:
  /// The length of each token's sequence: int64 [T].
  at::Tensor lengths(at::Device device) const {
    std::vector<int64_t> lengths;
    for (const auto& own : sequences) lengths.insert(lengths.end(), own.count, own.length);
    return to_device(lengths, device);
  }

  std::shared_ptr<RotaryEmbeddingImpl> rotary_;
  std::optional<AngleRange> range_;
  RotaryAngles angles_;
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
