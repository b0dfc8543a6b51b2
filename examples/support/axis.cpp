#include "axis.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace heed::examples {

namespace {

double magnitude(double value) { return std::floor(std::log10(value) + 1e-9); }

}  // namespace

Axis::Axis(double least, double most, int intervals) {
  const double largest = std::max(std::abs(least), std::abs(most));
  double span = most - least;
  if (span < 1e-6 * largest || span < 1e-290) {  // as good as one value: it stands in the middle
    span = largest < 1e-290 ? 1 : largest;
    least -= span / 2;
    most = least + span;
  }
  const double wanted = span / intervals;
  const double power = std::pow(10.0, magnitude(wanted));
  step_ = 10 * power;
  for (const int factor : {5, 2, 1}) {
    if (factor * power >= wanted * (1 - 1e-9)) step_ = factor * power;
  }
  first_ = std::floor(least / step_);
  ticks_ = static_cast<int>(std::ceil(most / step_) - first_) + 1;
}

double Axis::place(double value) const { return (value / step_ - first_) / (ticks_ - 1); }

std::string Axis::label(int tick) const {
  const double largest = std::max(std::abs(value(0)), std::abs(value(ticks_ - 1)));
  const auto step_digits = static_cast<int>(magnitude(step_));
  if (largest < 1e7 && step_ > 1e-6) {
    return fmt::format("{:.{}f}", value(tick), std::max(0, -step_digits));
  }
  return fmt::format("{:.{}g}", value(tick),
                     static_cast<int>(magnitude(largest)) - step_digits + 1);
}

}  // namespace heed::examples
