#pragma once

#include <string>

namespace heed::examples {

/// The range of an axis from one tick to another, with all values between them.
class Axis {
 public:
  /// For values from `least` to `most`, finite and below 1e300, with about `intervals` intervals
  /// between ticks.
  Axis(double least, double most, int intervals);

  /// 0 at the first tick, 1 at the last.
  double place(double value) const;

  int ticks() const { return ticks_; }
  double value(int tick) const { return (first_ + tick) * step_; }
  std::string label(int tick) const;

 private:
  double step_;   // between ticks: 1, 2 or 5 times a power of ten
  double first_;  // the first tick, in steps from 0
  int ticks_;
};

}  // namespace heed::examples
