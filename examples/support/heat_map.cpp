#include "heat_map.h"

#include <algorithm>
#include <cstdio>

#include "canvas.h"

namespace heed::examples {

namespace {

// In pixels.
constexpr int kGap = 24;
constexpr int kScaleWidth = 16;

/// Cells from this size on are parted by a line.
constexpr int kLinedCell = 12;
constexpr int kLine = 2;

/// Matplotlib's viridis at `value` in [0, 1].
Color viridis(float value) {
  static constexpr Color stops[] = {{68, 1, 84},    {71, 45, 123},  {59, 82, 139},
                                    {44, 114, 142}, {33, 145, 140}, {40, 174, 128},
                                    {94, 201, 98},  {173, 220, 48}, {253, 231, 37}};
  constexpr int last = static_cast<int>(std::size(stops)) - 1;
  const float place = std::clamp(value, 0.0F, 1.0F) * last;
  const int below = std::min(static_cast<int>(place), last - 1);
  const float part = place - static_cast<float>(below);
  Color color;
  for (size_t i = 0; i < color.size(); ++i) {
    const auto from = static_cast<float>(stops[below][i]);
    const auto to = static_cast<float>(stops[below + 1][i]);
    color[i] = static_cast<uint8_t>(from + part * (to - from) + 0.5F);
  }
  return color;
}

/// Paper at 0, ink at 1.
Color ink(float value) {
  const auto grey = static_cast<uint8_t>(240 - 220 * std::clamp(value, 0.0F, 1.0F));
  return {grey, grey, grey};
}

int widest(const std::vector<std::string>& labels) {
  int width = 0;
  for (const auto& label : labels) width = std::max(width, Canvas::text_width(label));
  return width;
}

/// Where everything stands, in pixels, from left to right: the name and labels of the queries, the
/// picture, the heads, the colour scale.
struct Layout {
  Layout(const at::Tensor& weights, const HeatMapOptions& options) {
    const int text = Canvas::text_height();
    const auto queries = static_cast<int>(weights.size(1));
    const auto keys = static_cast<int>(weights.size(2));
    cell = std::max(1, options.panel / std::max({1, queries, keys}));
    panel_width = cell * keys;
    panel_height = cell * queries;
    labels_right =
        kGap + text + (options.query_labels.empty() ? 0 : kGap) + widest(options.query_labels);
    picture = labels_right + kGap / 2;
    picture_width = options.picture ? cell * static_cast<int>(options.picture->size(1)) : 0;
    heads = picture + (options.picture ? picture_width + kGap : 0);
    scale = heads + static_cast<int>(weights.size(0)) * (panel_width + kGap);
    width = scale + kScaleWidth + kGap / 2 + Canvas::text_width("0.00") + kGap;
    top = kGap + text + kGap / 2;
    key_labels = top + panel_height + kGap / 2;
    upwards = widest(options.key_labels) > cell;
    const int labels_height = upwards ? widest(options.key_labels) : text;
    key_name = key_labels + (options.key_labels.empty() ? 0 : labels_height + kGap / 2);
    height = key_name + text + kGap;
  }

  int head(int64_t index) const { return heads + static_cast<int>(index) * (panel_width + kGap); }

  int cell, panel_width, panel_height, picture_width;
  int labels_right, picture, heads, scale, width;  // from the left
  int top, key_labels, key_name, height;           // from the top; `top` of the cells
  bool upwards;                                    // key labels that are wider than their cells
};

/// A square for each value of a matrix [rows, columns].
template <typename ToColor>
void draw_cells(Canvas& canvas, int x, int y, int cell, const at::Tensor& values,
                ToColor&& to_color) {
  const auto matrix = values.accessor<float, 2>();
  const int line = cell >= kLinedCell ? kLine : 0;
  for (int row = 0; row < matrix.size(0); ++row) {
    for (int column = 0; column < matrix.size(1); ++column) {
      canvas.fill(x + cell * column, y + cell * row, cell - line, cell - line,
                  to_color(matrix[row][column]));
    }
  }
}

void write_centred(Canvas& canvas, int x, int width, int y, const std::string& text) {
  canvas.write(x + (width - Canvas::text_width(text)) / 2, y, text);
}

void draw_queries(Canvas& canvas, const Layout& layout, const HeatMapOptions& options) {
  const int name_width = Canvas::text_width(options.query_name);
  canvas.write(kGap, layout.top + (layout.panel_height + name_width) / 2, options.query_name,
               /*upwards=*/true);
  int y = layout.top + (layout.cell - Canvas::text_height()) / 2;
  for (const auto& label : options.query_labels) {
    canvas.write(layout.labels_right - Canvas::text_width(label), y, label);
    y += layout.cell;
  }
  if (options.picture) {
    const auto picture = options.picture->to(at::kCPU, at::kFloat);
    draw_cells(canvas, layout.picture, layout.top, layout.cell, picture, ink);
    write_centred(canvas, layout.picture, layout.picture_width, kGap, options.picture_title);
  }
}

void draw_head(Canvas& canvas, const Layout& layout, const HeatMapOptions& options, int64_t index,
               const at::Tensor& weights, float largest) {
  const int left = layout.head(index);
  const auto title =
      options.titles.empty() ? "head " + std::to_string(index + 1) : options.titles.at(index);
  write_centred(canvas, left, layout.panel_width, kGap, title);
  draw_cells(canvas, left, layout.top, layout.cell, weights,
             [largest](float weight) { return viridis(weight / largest); });
  int x = left;
  for (const auto& label : options.key_labels) {
    if (layout.upwards) {
      canvas.write(x + (layout.cell - Canvas::text_height()) / 2,
                   layout.key_labels + Canvas::text_width(label), label, /*upwards=*/true);
    } else {
      write_centred(canvas, x, layout.cell, layout.key_labels, label);
    }
    x += layout.cell;
  }
  write_centred(canvas, left, layout.panel_width, layout.key_name, options.key_name);
}

void draw_scale(Canvas& canvas, const Layout& layout, float largest) {
  const int steps = layout.panel_height;
  for (int step = 0; step < steps; ++step) {
    canvas.fill(layout.scale, layout.top + steps - 1 - step, kScaleWidth, 1,
                viridis(static_cast<float>(step) / static_cast<float>(steps)));
  }
  char text[16];
  std::snprintf(text, sizeof(text), "%.2f", largest);
  const int x = layout.scale + kScaleWidth + kGap / 2;
  canvas.write(x, layout.top, text);
  canvas.write(x, layout.top + steps - Canvas::text_height(), "0");
}

}  // namespace

void write_heat_map(const std::string& path, const at::Tensor& weights,
                    const HeatMapOptions& options) {
  const auto values = weights.detach().to(at::kCPU, at::kFloat);
  const auto largest = values.max().item<float>();
  const Layout layout(values, options);
  Canvas canvas(layout.width, layout.height);
  draw_queries(canvas, layout, options);
  for (int64_t head = 0; head < values.size(0); ++head) {
    draw_head(canvas, layout, options, head, values[head], largest);
  }
  draw_scale(canvas, layout, largest);
  canvas.save_png(path);
}

}  // namespace heed::examples
