// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/ScopeExit.h>
#include <heed/export.h>

#include <cstdint>

namespace heed::detail {

/// Draws a seed from a device's default generator.
uint64_t draw_seed(at::Device device);

/// Draws the key of one call's dropout, from which all of its random numbers follow. LibTorch's
/// generator for the CPU gives it, so torch::manual_seed controls it. Without dropout it is 0.
HEED_API uint64_t draw_dropout_key(double dropout);

/// The 32-bit random numbers below this one drop what they are drawn for.
uint32_t dropout_threshold(double dropout);

/// The state of a device's default generator when this object was made.
class RandomState {
 public:
  explicit RandomState(at::Device device);

  /// Calls `run` with the generator in this state, and returns its result. Afterwards the
  /// generator goes on from where it was.
  template <typename Run>
  auto replay(const Run& run) const {
    const auto present = read();
    write(state_);
    const auto go_on = c10::make_scope_exit([&] { write(present); });
    return run();
  }
  /// Sets the generator to this state.
  void restore() const { write(state_); }

 private:
  at::Tensor read() const;
  void write(const at::Tensor& state) const;

  mutable at::Generator generator_;  // mutable, because locking it is not const
  at::Tensor state_;
};

/// While this object exists, a device's default generator gives the random numbers of a seed.
/// Afterwards the generator has the state that it had before.
class SeededNumbers {
 public:
  SeededNumbers(at::Device device, uint64_t seed);
  ~SeededNumbers() { before_.restore(); }
  SeededNumbers(const SeededNumbers&) = delete;
  SeededNumbers& operator=(const SeededNumbers&) = delete;

 private:
  const RandomState before_;
};

/// While this object exists, a device's default generator gives random numbers that differ between
/// streams. Afterwards its state has advanced by one draw, whichever the stream. So processes draw
/// different numbers, but their generators stay equal, and restoring the generator's state
/// restores all streams.
class RandomStream {
 public:
  RandomStream(at::Device device, int64_t stream);

 private:
  SeededNumbers numbers_;
};

}  // namespace heed::detail
