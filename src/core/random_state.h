#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace heed::detail {

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

/// While this object exists, a device's default generator gives other random numbers for each
/// `stream`. Afterwards its state is the same for all of them: a few numbers further. So processes
/// draw different numbers and stay in step, and whoever restores the generator's state restores the
/// streams too.
class RandomStream {
 public:
  RandomStream(at::Device device, int64_t stream);
  ~RandomStream() { after_.restore(); }
  RandomStream(const RandomStream&) = delete;
  RandomStream& operator=(const RandomStream&) = delete;

 private:
  const uint64_t seed_;  // drawn before `after_` is read
  const RandomState after_;
};

}  // namespace heed::detail
