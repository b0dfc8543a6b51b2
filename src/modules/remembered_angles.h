#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <heed/rotary_embedding.h>

#include <cstdint>
#include <mutex>
#include <optional>

namespace heed::detail {

/// Identifies angles and where they were computed. Angles computed on a stream are ready only on
/// that stream.
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

/// The angles that any thread requested last.
class RememberedAngles {
 public:
  std::optional<RotaryAngles> find(const AngleRange& range) const {
    const std::scoped_lock lock(mutex_);
    return range_ == range ? std::optional(angles_) : std::nullopt;
  }

  void keep(const AngleRange& range, const RotaryAngles& angles) {
    const std::scoped_lock lock(mutex_);
    range_ = range;
    angles_ = angles;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<AngleRange> range_;
  RotaryAngles angles_;
};

}  // namespace heed::detail
