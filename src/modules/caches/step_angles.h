// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <heed/rotary_embedding.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/to_device.h"
#include "modules/layers/remembered_angles.h"

namespace heed::detail {

/// The tokens that an append adds to one sequence of a cache.
struct AppendedSequence {
  int64_t name;
  int64_t cached, count;  // tokens that were cached before, and new tokens
  int64_t length;         // the largest position + 1; drafts may share a position
};

/// The rotary angles of a step's tokens. Layers whose rotary embeddings have equal options compute
/// them once.
class StepAngles {
 public:
  std::vector<AppendedSequence> sequences;

  /// Returns the angles at `positions`, which are the same in all calls. Calls check() before it
  /// computes angles that it does not have.
  template <typename Check>
  RotaryAngles of(const RotaryEmbedding& rotary, const at::Tensor& positions, at::ScalarType dtype,
                  const Check& check) {
    const AngleRange range{0, positions.size(0), dtype, current_stream(positions.device()),
                           c10::InferenceMode::is_enabled()};
    const auto found = std::find_if(made_.begin(), made_.end(), [&](const Made& made) {
      return made.range == range &&
             (made.rotary == rotary.ptr() || made.rotary->options == rotary->options);
    });
    if (found != made_.end()) return found->angles;
    check();
    const auto angles = rotary->depends_on_length()
                            ? rotary->angles(positions, lengths(positions.device()), dtype)
                            : rotary->angles(positions, dtype);
    return made_.emplace_back(Made{rotary.ptr(), range, angles}).angles;
  }

 private:
  struct Made {
    std::shared_ptr<RotaryEmbeddingImpl> rotary;
    AngleRange range;
    RotaryAngles angles;
  };

  /// The length of each token's sequence: int64 [T].
  at::Tensor lengths(at::Device device) const {
    std::vector<int64_t> lengths;
    for (const auto& own : sequences) lengths.insert(lengths.end(), own.count, own.length);
    return to_device(lengths, device);
  }

  std::vector<Made> made_;
};

}  // namespace heed::detail
