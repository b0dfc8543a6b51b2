// SPDX-License-Identifier: BSD-3-Clause
#include "heat_map.h"

#include <ATen/Functions.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "canvas.h"

namespace heed::examples {

namespace {

// In pixels.
constexpr int kLongestLabel = 260;
constexpr int kGap = 24;
constexpr int kScaleWidth = 16;
constexpr int kLinedCell = 12;  // cells from this size on are parted by a line
constexpr int kLine = 2;

constexpr Color kEmpty = {215, 215, 220};

/// The color of a value from 0 to 1 in Matplotlib's viridis; for NaN, that of an empty cell.
Color viridis(float value) {
  static constexpr Color stops[] = {{68, 1, 84},    {71, 45, 123},  {59, 82, 139},
                                    {44, 114, 142}, {33, 145, 140}, {40, 174, 128},
                                    {94, 201, 98},  {173, 220, 48}, {253, 231, 37}};
  constexpr int last = static_cast<int>(std::size(stops)) - 1;
  if (std::isnan(value)) return kEmpty;
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

/// A color between paper at 0 and ink at 1; for NaN, that of an empty cell.
Color ink(float value) {
  if (std::isnan(value)) return kEmpty;
  const auto gray = static_cast<uint8_t>(240 - 220 * std::clamp(value, 0.0F, 1.0F));
  return {gray, gray, gray};
}

int widest(const std::vector<std::string>& labels) {
  int width = 0;
  for (const auto& label : labels) width = std::max(width, Canvas::text_width(label));
  return width;
}

/// Whether labels, each in the middle of its cell, keep clear of each other and of the next head's.
bool fit_side_by_side(const std::vector<std::string>& labels, int cell) {
  constexpr int kClear = 5;
  int before = 0;  // the width of the label to the left
  for (const auto& label : labels) {
    const int width = Canvas::text_width(label);
    if (width > cell + kGap - kClear || (before + width) / 2 + kClear > cell) return false;
    before = width;
  }
  return true;
}

/// The position of each part, in pixels. From left to right: the name and labels of the queries,
/// the picture, the heads, the color scale. A column is as wide as its matrix or as the texts above
/// and below it.
struct HeatMapLayout {
  /// For `heads` matrices [queries, keys] and a scale that ends at `scale_label`.
  HeatMapLayout(int heads_count, int queries, int keys, const HeatMapOptions& options,
                const std::string& scale_label) {
    const int text = Canvas::text_height();
    cell = std::max(1, options.panel / std::max({1, queries, keys}));
    line = cell >= kLinedCell ? kLine : 0;
    cells_width = cell * keys - line;
    const int cells_height = cell * queries - line;
    label_step = cell >= text ? 1 : (text + kGap / 4 + cell - 1) / cell;
    upwards = !fit_side_by_side(options.key_labels, cell);

    query_name = kGap + text / 2;
    query_labels_right =
        kGap + text + (options.query_labels.empty() ? 0 : kGap / 2 + widest(options.query_labels));
    const int first_column = query_labels_right + kGap / 2;
    int picture_cells = 0, picture_width = 0;
    if (options.picture) {
      picture_cells = cell * static_cast<int>(options.picture->size(1)) - line;
      picture_width = std::max(picture_cells, Canvas::text_width(options.picture_title));
    }
    picture = first_column + (picture_width - picture_cells) / 2;
    heads = first_column + (options.picture ? picture_width + kGap : 0);
    head_width =
        std::max({cells_width, widest(options.titles), Canvas::text_width(options.key_name)});
    scale = heads + heads_count * (head_width + kGap);
    width = scale + kScaleWidth + kGap / 2 + Canvas::text_width(scale_label) + kGap;

    scale_height = std::max(cells_height, 3 * text);
    titles = kGap + text / 2;
    const int tallest = std::max(scale_height, Canvas::text_width(options.query_name));
    middle = kGap + text + kGap / 2 + tallest / 2;
    top = middle - cells_height / 2;
    const int bottom = top + cells_height;
    key_labels = bottom + kGap / 2 + (upwards ? 0 : text / 2);
    const int labels_height = upwards ? widest(options.key_labels) : text;
    key_name = bottom + kGap / 2 + text / 2;
    if (!options.key_labels.empty()) key_name += labels_height + kGap / 2;
    height = std::max(key_name + text / 2, middle + (tallest + text) / 2) + kGap;
  }

  /// The left edge of a head's cells.
  int head(int64_t index) const {
    return heads + static_cast<int>(index) * (head_width + kGap) + (head_width - cells_width) / 2;
  }

  int cell, line, cells_width;         ///< a cell, and the line to the next cell
  int query_name, query_labels_right;  ///< the name's middle
  int picture;                         ///< the left edge of its cells
  int heads, head_width;               ///< the left edge of the first column, the width of each
  int scale, scale_height, width;
  int titles, middle, top;  ///< the titles' middle; the cells' middle and top
  int key_labels;           ///< the middle of the first line; the end of labels that run upwards
  int key_name, height;     ///< the name's middle
  bool upwards;             ///< whether key labels run upwards because they would touch
  int label_step;           ///< there is room for a label at every label_step-th cell
};

/// `options` with a title for each of `heads` and with words that leave room for the weights.
HeatMapOptions in_short(HeatMapOptions options, int64_t heads) {
  for (auto i = static_cast<int64_t>(options.titles.size()); i < heads; ++i) {
    options.titles.push_back(fmt::format("head {}", i + 1));
  }
  for (auto* labels : {&options.titles, &options.query_labels, &options.key_labels}) {
    for (auto& label : *labels) label = shortened(label, kLongestLabel);
  }
  for (auto* name : {&options.query_name, &options.key_name, &options.picture_title}) {
    *name = shortened(*name, kLongestLabel);
  }
  return options;
}

/// The largest weight but for infinite ones; 0 where there is none.
float largest_of(const at::Tensor& weights) {
  const auto finite = weights.masked_select(weights.isfinite());
  return finite.numel() == 0 ? 0.0F : std::max(0.0F, finite.max().item<float>());
}

/// A square for each value of a matrix [rows, columns].
template <typename ToColor>
void draw_cells(Canvas& canvas, const HeatMapLayout& layout, int left, const at::Tensor& values,
                ToColor&& to_color) {
  const auto matrix = values.accessor<float, 2>();
  const int cell = layout.cell, size = cell - layout.line;
  for (int row = 0; row < matrix.size(0); ++row) {
    for (int column = 0; column < matrix.size(1); ++column) {
      canvas.fill(left + cell * column, layout.top + cell * row, size, size,
                  to_color(matrix[row][column]));
    }
  }
}

/// Calls `write(label, middle)` for the labels of `count` cells from `begin` that there is room
/// for.
template <typename Write>
void for_labels(const HeatMapLayout& layout, const std::vector<std::string>& labels, int begin,
                int64_t count, Write&& write) {
  const auto end = std::min(labels.size(), static_cast<size_t>(count));
  for (size_t i = 0; i < end; i += static_cast<size_t>(layout.label_step)) {
    write(labels[i], begin + layout.cell * static_cast<int>(i) + (layout.cell - layout.line) / 2.0);
  }
}

void draw_queries(Canvas& canvas, const HeatMapLayout& layout, const HeatMapOptions& options,
                  int64_t queries) {
  canvas.write(layout.query_name, layout.middle, options.query_name, Align::kMiddle,
               Direction::kUp);
  for_labels(layout, options.query_labels, layout.top, queries,
             [&](const std::string& label, double y) {
               canvas.write(layout.query_labels_right, y, label, Align::kEnd);
             });
  if (options.picture) {
    const auto picture = options.picture->to(at::kCPU, at::kFloat);
    draw_cells(canvas, layout, layout.picture, picture, ink);
    const auto cells_width = static_cast<double>(layout.cell * picture.size(1) - layout.line);
    canvas.write(layout.picture + cells_width / 2, layout.titles, options.picture_title,
                 Align::kMiddle);
  }
}

void draw_head(Canvas& canvas, const HeatMapLayout& layout, const HeatMapOptions& options,
               int64_t index, const at::Tensor& weights, float largest) {
  const int left = layout.head(index);
  const double middle = left + layout.cells_width / 2.0;
  canvas.write(middle, layout.titles, options.titles[static_cast<size_t>(index)], Align::kMiddle);
  draw_cells(canvas, layout, left, weights,
             [largest](float weight) { return viridis(largest > 0 ? weight / largest : weight); });
  for_labels(
      layout, options.key_labels, left, weights.size(1), [&](const std::string& label, double x) {
        canvas.write(x, layout.key_labels, label, layout.upwards ? Align::kEnd : Align::kMiddle,
                     layout.upwards ? Direction::kUp : Direction::kRight);
      });
  canvas.write(middle, layout.key_name, options.key_name, Align::kMiddle);
}

void draw_scale(Canvas& canvas, const HeatMapLayout& layout, const std::string& label) {
  const int top = layout.middle - layout.scale_height / 2, bottom = top + layout.scale_height;
  for (int y = top; y < bottom; ++y) {
    const auto above = static_cast<float>(bottom - 1 - y);
    canvas.fill(layout.scale, y, kScaleWidth, 1,
                viridis(above / static_cast<float>(layout.scale_height - 1)));
  }
  const int x = layout.scale + kScaleWidth + kGap / 2;
  canvas.write(x, top + Canvas::text_height() / 2.0, label);
  canvas.write(x, bottom - Canvas::text_height() / 2.0, "0");
}

}  // namespace

void write_heat_map(const std::string& path, const at::Tensor& weights,
                    const HeatMapOptions& options) {
  const auto values = weights.detach().to(at::kCPU, at::kFloat);
  const auto heads = values.size(0), queries = values.size(1), keys = values.size(2);
  const auto words = in_short(options, heads);
  const auto largest = largest_of(values);
  const auto label = fmt::format("{:.2g}", largest);
  const HeatMapLayout layout(static_cast<int>(heads), static_cast<int>(queries),
                             static_cast<int>(keys), words, label);
  Canvas canvas(layout.width, layout.height);
  draw_queries(canvas, layout, words, queries);
  for (int64_t head = 0; head < heads; ++head) {
    draw_head(canvas, layout, words, head, values[head], largest);
  }
  draw_scale(canvas, layout, label);
  canvas.save_png(path);
}

}  // namespace heed::examples
