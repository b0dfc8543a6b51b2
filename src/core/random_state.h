#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace heed::detail {

/// A seed from the numbers that a device's default generator gives next; they are used up.
uint64_t draw_seed(at::Device device);

/// The random numbers that a device's default generator gives from here on.
class RandomState {
 public:
  explicit RandomState(at::Device device);

  /// Goes back to this state while `run` runs.
  template <typename Run>
  auto replay(const Run& run) const {
    const auto present = read();
    write(state_);
    const struct Restore {
      const RandomState& owner;
      const at::Tensor& state;
      ~Restore() { owner.write(state); }
    } restore{*this, present};
    return run();
  }
  /// Goes back to this state.
  void restore() const { write(state_); }

 private:
  at::Tensor read() const;
  void write(const at::Tensor& state) const;

  mutable at::Generator generator_;  // its lock is not const
  at::Tensor state_;
};

/// While this object exists, a device's default generator gives the random numbers of a seed.
/// Afterwards it goes on as if there had been none.
class SeededNumbers {
 public:
  SeededNumbers(at::Device device, uint64_t seed);
  ~SeededNumbers() { before_.restore(); }
  SeededNumbers(const SeededNumbers&) = delete;
  SeededNumbers& operator=(const SeededNumbers&) = delete;

 private:
  const RandomState before_;
};

/// While this object exists, a device's default generator gives other random numbers for each
/// `stream`. Afterwards its state is the same for all of them: a few numbers further. So processes
/// draw different numbers and stay in step, and whoever restores the generator's state restores the
/// streams too.
class RandomStream {
 public:
  RandomStream(at::Device device, int64_t stream);

 private:
  SeededNumbers numbers_;
};

}  // namespace heed::detail
