#include "line_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

namespace heed::examples {

namespace {

// In pixels.
constexpr int kWidth = 1200;
constexpr int kHeight = 750;
constexpr int kLeft = 150;
constexpr int kRight = 60;
constexpr int kTop = 40;
constexpr int kBottom = 120;
constexpr int kPlotGap = 16;
constexpr int kLineWidth = 4;

constexpr Color kGrid = {225, 225, 225};
constexpr Color kAxis = {60, 60, 60};

/// An axis from `low` to `high`, both at a tick.
struct Axis {
  Axis(double least, double most) {
    const double span = most > least ? most - least : std::max(std::abs(most), 1.0);
    step = std::pow(10.0, std::floor(std::log10(span / 2)));
    if (span / step > 10) {
      step *= 5;
    } else if (span / step > 5) {
      step *= 2;
    }
    low = step * std::floor(least / step);
    high = step * std::ceil(std::max(most, least + span / 2) / step);
  }

  /// 0 at low, 1 at high.
  double place(double value) const { return (value - low) / (high - low); }
  int ticks() const { return static_cast<int>(std::lround((high - low) / step)); }

  std::string label(int tick) const {
    char text[32];
    std::snprintf(text, sizeof(text), "%.*f",
                  step < 1 ? 1 + static_cast<int>(-std::log10(step)) : 0, low + tick * step);
    return text;
  }

  double step, low, high;
};

int to_x(const Axis& axis, double value) {
  return kLeft + static_cast<int>(axis.place(value) * (kWidth - kLeft - kRight));
}

int to_y(const Axis& axis, double value) {
  return kHeight - kBottom - static_cast<int>(axis.place(value) * (kHeight - kTop - kBottom));
}

void draw_axes(Canvas& canvas, const Axis& x, const Axis& y, const std::string& x_name,
               const std::string& y_name) {
  const int bottom = kHeight - kBottom, right = kWidth - kRight;
  const int text = Canvas::text_height();
  for (int tick = 0; tick <= x.ticks(); ++tick) {
    const int place = to_x(x, x.low + tick * x.step);
    canvas.fill(place, kTop, 1, bottom - kTop, kGrid);
    const auto label = x.label(tick);
    canvas.write(place - Canvas::text_width(label) / 2, bottom + kPlotGap, label);
  }
  for (int tick = 0; tick <= y.ticks(); ++tick) {
    const int place = to_y(y, y.low + tick * y.step);
    canvas.fill(kLeft, place, right - kLeft, 1, kGrid);
    const auto label = y.label(tick);
    canvas.write(kLeft - kPlotGap - Canvas::text_width(label), place - text / 2, label);
  }
  canvas.fill(kLeft, kTop, 2, bottom - kTop, kAxis);
  canvas.fill(kLeft, bottom, right - kLeft, 2, kAxis);
  canvas.write((kLeft + right - Canvas::text_width(x_name)) / 2, kHeight - kPlotGap - text, x_name);
  canvas.write(kPlotGap, (kTop + bottom + Canvas::text_width(y_name)) / 2, y_name,
               /*upwards=*/true);
}

void draw_line(Canvas& canvas, const Axis& x, const Axis& y, const Series& series) {
  const auto dot = [&](double across, double up) {
    canvas.fill(static_cast<int>(across) - kLineWidth / 2, static_cast<int>(up) - kLineWidth / 2,
                kLineWidth, kLineWidth, series.color);
  };
  for (size_t i = 0; i < series.points.size(); ++i) {
    const auto& [to_across, to_up] = series.points[i];
    const auto& [from_across, from_up] = series.points[i > 0 ? i - 1 : 0];
    const int left = to_x(x, from_across), top = to_y(y, from_up);
    const int across = to_x(x, to_across) - left, up = to_y(y, to_up) - top;
    const int dots = std::max({std::abs(across), std::abs(up), 1});
    for (int k = 0; k <= dots; ++k) {
      const double part = static_cast<double>(k) / dots;
      dot(left + part * across, top + part * up);
    }
  }
}

void draw_names(Canvas& canvas, const std::vector<Series>& series) {
  constexpr int kSwatch = 40;
  const int text = Canvas::text_height();
  int widest = 0;
  for (const auto& line : series) widest = std::max(widest, Canvas::text_width(line.name));
  const int left = kWidth - kRight - kPlotGap - widest;
  int top = kTop + kPlotGap;
  for (const auto& line : series) {
    canvas.fill(left - kPlotGap - kSwatch, top + text / 2 - kLineWidth / 2, kSwatch, kLineWidth,
                line.color);
    canvas.write(left, top, line.name);
    top += text + kPlotGap;
  }
}

}  // namespace

void write_line_plot(const std::string& path, const std::vector<Series>& series,
                     const std::string& x_name, const std::string& y_name) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double left = kInfinity, right = -kInfinity, low = kInfinity, high = -kInfinity;
  for (const auto& line : series) {
    for (const auto& [x, y] : line.points) {
      left = std::min(left, x);
      right = std::max(right, x);
      low = std::min(low, y);
      high = std::max(high, y);
    }
  }
  if (left > right) throw std::runtime_error("cannot write " + path + ": there is nothing to plot");
  const Axis x(left, right), y(low, high);
  Canvas canvas(kWidth, kHeight);
  draw_axes(canvas, x, y, x_name, y_name);
  for (const auto& line : series) draw_line(canvas, x, y, line);
  draw_names(canvas, series);
  canvas.save_png(path);
}

}  // namespace heed::examples
