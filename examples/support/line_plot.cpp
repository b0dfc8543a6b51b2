#include "line_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "axis.h"
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
template <typename Coordinate>
std::pair<double, double> range(const std::vector<Series>& series, Coordinate&& coordinate) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double least = kInfinity, most = -kInfinity;
  for (const auto& line : series) {
    for (const auto& point : line.points) {
      if (!drawable(point)) continue;
      least = std::min(least, coordinate(point));
      most = std::max(most, coordinate(point));
    }
  }
  return least > most ? std::pair(0.0, 1.0) : std::pair(least, most);
}

/// A rectangle as large as the labels of the ticks leave room for, but for its top. The labels do
/// not touch each other.
Plot make_plot(const std::vector<Series>& series) {
  const auto [left, right] = range(series, [](const Point& point) { return point.first; });
  const auto [low, high] = range(series, [](const Point& point) { return point.second; });
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

/// Where a name of the legend stands: the left edge of its swatch, its middle.
struct Entry {
  std::string name;
  Color color;
  int x, y;
};

/// Names in rows above the plot; those for which no room is left are left out.
std::vector<Entry> make_legend(const std::vector<Series>& series, int left, int right) {
  const int text = Canvas::text_height();
  const int longest = (right - left) / 2 - kSwatch - kTickGap;
  std::vector<Entry> legend;
  int x = left, y = kMargin + text / 2;
  for (const auto& line : series) {
    const auto name = shortened(line.name, longest);
    const int width = kSwatch + kTickGap + Canvas::text_width(name);
    if (x > left && x + width > right) {
      x = left;
      y += text + kTickGap;
    }
    if (y > kHeight / 3) break;
    legend.push_back({name, line.color, x, y});
    x += width + 2 * kMargin;
  }
  return legend;
}

void draw_legend(Canvas& canvas, const std::vector<Entry>& legend) {
  for (const auto& [name, color, x, y] : legend) {
    canvas.fill(x, y - kLineWidth / 2, kSwatch, kLineWidth, color);
    canvas.write(x + kSwatch + kTickGap, y, name);
  }
}

}  // namespace

void write_line_plot(const std::string& path, const std::vector<Series>& series,
                     const std::string& x_name, const std::string& y_name) {
  const auto empty = [](const Series& line) { return line.points.empty(); };
  if (std::all_of(series.begin(), series.end(), empty)) {
    throw std::runtime_error("cannot write " + path + ": there is nothing to plot");
  }
  auto plot = make_plot(series);
  const auto legend = make_legend(series, plot.left, plot.right);
  plot.top = legend.back().y + Canvas::text_height() / 2 + kMargin;
  Canvas canvas(kWidth, kHeight);
  draw_axes(canvas, plot, x_name, y_name);
  for (const auto& line : series) draw_line(canvas, plot, line);
  draw_legend(canvas, legend);
  canvas.save_png(path);
}

}  // namespace heed::examples
