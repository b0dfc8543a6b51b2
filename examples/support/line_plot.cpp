// SPDX-License-Identifier: BSD-3-Clause
#include "line_plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "canvas.h"

namespace heed::examples {

namespace {

using Point = std::pair<double, double>;

// In pixels.
constexpr int kWidth = 1200;
constexpr int kHeight = 750;
constexpr int kMargin = 24;
constexpr int kTickGap = 12;
constexpr int kLineWidth = 4;
constexpr int kSwatch = 40;

constexpr Color kGrid = {225, 225, 225};
constexpr Color kAxis = {60, 60, 60};

/// Axes do not reach infinity; and twice the largest number is infinite.
bool drawable(const Point& point) {
  constexpr double kLargest = 1e300;
  return std::abs(point.first) < kLargest && std::abs(point.second) < kLargest;
}

double magnitude(double value) { return std::floor(std::log10(value) + 1e-9); }

/// The range of an axis from one tick to another, with all values between them.
class Axis {
 public:
  /// For values from `least` to `most`, finite and below 1e300, with about `intervals` intervals
  /// between ticks.
  Axis(double least, double most, int intervals) {
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

  /// 0 at the first tick, 1 at the last.
  double place(double value) const { return (value / step_ - first_) / (ticks_ - 1); }

  int ticks() const { return ticks_; }
  double value(int tick) const { return (first_ + tick) * step_; }
  std::string label(int tick) const {
    const double largest = std::max(std::abs(value(0)), std::abs(value(ticks_ - 1)));
    const auto step_digits = static_cast<int>(magnitude(step_));
    if (largest < 1e7 && step_ > 1e-6) {
      return fmt::format("{:.{}f}", value(tick), std::max(0, -step_digits));
    }
    return fmt::format("{:.{}g}", value(tick),
                       static_cast<int>(magnitude(largest)) - step_digits + 1);
  }

 private:
  double step_;   // between ticks: 1, 2 or 5 times a power of ten
  double first_;  // the first tick, in steps from 0
  int ticks_;
};

/// The rectangle between the axes, in pixels, and what they stand for.
struct Plot {
  double to_x(double value) const { return left + x.place(value) * (right - left); }
  double to_y(double value) const { return bottom - y.place(value) * (bottom - top); }

  Axis x, y;
  int left, right, top, bottom;
};

int widest_label(const Axis& axis) {
  int width = 0;
  for (int tick = 0; tick < axis.ticks(); ++tick) {
    width = std::max(width, Canvas::text_width(axis.label(tick)));
  }
  return width;
}

/// The range of one coordinate over all points; from 0 to 1 where there is none.
std::pair<double, double> range(const std::vector<Series>& series, double Point::*coordinate) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double least = kInfinity, most = -kInfinity;
  for (const auto& line : series) {
    for (const auto& point : line.points) {
      if (!drawable(point)) continue;
      least = std::min(least, point.*coordinate);
      most = std::max(most, point.*coordinate);
    }
  }
  return least > most ? std::pair(0.0, 1.0) : std::pair(least, most);
}

/// A rectangle as large as the labels of the ticks leave room for, but for its top. The labels do
/// not touch each other.
Plot make_plot(const std::vector<Series>& series) {
  const auto [left, right] = range(series, &Point::first);
  const auto [low, high] = range(series, &Point::second);
  const int text = Canvas::text_height();
  Plot plot{Axis(left, right, 10), Axis(low, high, 8), 0, 0, 0, 0};
  plot.left = kMargin + text + kTickGap + widest_label(plot.y) + kTickGap;
  plot.bottom = kHeight - kMargin - text - kTickGap - text - kTickGap;
  int widest = widest_label(plot.x);
  const auto touch = [&] {
    return (plot.x.ticks() - 1) * (widest + 2 * kTickGap) > kWidth - plot.left - kMargin;
  };
  for (int intervals = 9; intervals > 0 && touch(); --intervals) {
    plot.x = Axis(left, right, intervals);
    widest = widest_label(plot.x);
  }
  plot.right = kWidth - kMargin - widest / 2;
  return plot;
}

void draw_axes(Canvas& canvas, const Plot& plot, const std::string& x_name,
               const std::string& y_name) {
  const int width = plot.right - plot.left, height = plot.bottom - plot.top;
  const double text = Canvas::text_height();
  for (int tick = 0; tick < plot.x.ticks(); ++tick) {
    const double x = plot.to_x(plot.x.value(tick));
    canvas.fill(static_cast<int>(x), plot.top, 1, height, kGrid);
    canvas.write(x, plot.bottom + kTickGap + text / 2, plot.x.label(tick), Align::kMiddle);
  }
  for (int tick = 0; tick < plot.y.ticks(); ++tick) {
    const double y = plot.to_y(plot.y.value(tick));
    canvas.fill(plot.left, static_cast<int>(y), width, 1, kGrid);
    canvas.write(plot.left - kTickGap, y, plot.y.label(tick), Align::kEnd);
  }
  canvas.fill(plot.left, plot.top, 2, height, kAxis);
  canvas.fill(plot.left, plot.bottom, width, 2, kAxis);
  canvas.write(plot.left + width / 2.0, kHeight - kMargin - text / 2, shortened(x_name, width),
               Align::kMiddle);
  canvas.write(kMargin + text / 2, plot.top + height / 2.0, shortened(y_name, height),
               Align::kMiddle, Direction::kUp);
}

void draw_line(Canvas& canvas, const Plot& plot, const Series& series) {
  std::vector<Point> line;
  for (const auto& point : series.points) {
    if (drawable(point)) {
      line.emplace_back(plot.to_x(point.first), plot.to_y(point.second));
    } else {
      canvas.line(line, kLineWidth, series.color);
      line.clear();
    }
  }
  canvas.line(line, kLineWidth, series.color);
}

/// Names in rows above the plot; those for which no room is left are left out. Returns the middle
/// of the last row.
int draw_legend(Canvas& canvas, const Plot& plot, const std::vector<Series>& series) {
  const int text = Canvas::text_height();
  const int longest = (plot.right - plot.left) / 2 - kSwatch - kTickGap;
  int x = plot.left, y = kMargin + text / 2;
  for (const auto& line : series) {
    const auto name = shortened(line.name, longest);
    const int width = kSwatch + kTickGap + Canvas::text_width(name);
    if (x > plot.left && x + width > plot.right) {
      if (y + text + kTickGap > kHeight / 3) break;
      x = plot.left;
      y += text + kTickGap;
    }
    canvas.fill(x, y - kLineWidth / 2, kSwatch, kLineWidth, line.color);
    canvas.write(x + kSwatch + kTickGap, y, name);
    x += width + 2 * kMargin;
  }
  return y;
}

}  // namespace

void write_line_plot(const std::string& path, const std::vector<Series>& series,
                     const std::string& x_name, const std::string& y_name) {
  const auto empty = [](const Series& line) { return line.points.empty(); };
  if (std::all_of(series.begin(), series.end(), empty)) {
    throw std::runtime_error("cannot write " + path + ": there is nothing to plot");
  }
  auto plot = make_plot(series);
  Canvas canvas(kWidth, kHeight);
  plot.top = draw_legend(canvas, plot, series) + Canvas::text_height() / 2 + kMargin;
  draw_axes(canvas, plot, x_name, y_name);
  for (const auto& line : series) draw_line(canvas, plot, line);
  canvas.save_png(path);
}

}  // namespace heed::examples
