#include "heat_map_layout.h"

#include <algorithm>

#include "canvas.h"

namespace heed::examples {

namespace {

/// Cells from this size on are parted by a line.
constexpr int kLinedCell = 12;
constexpr int kLine = 2;

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
    if (width > cell + kHeatMapGap - kClear || (before + width) / 2 + kClear > cell) return false;
    before = width;
  }
  return true;
}

}  // namespace

HeatMapLayout::HeatMapLayout(int heads_count, int queries, int keys, const HeatMapOptions& options,
                             const std::string& scale_label) {
  const int text = Canvas::text_height(), gap = kHeatMapGap;
  cell = std::max(1, options.panel / std::max({1, queries, keys}));
  line = cell >= kLinedCell ? kLine : 0;
  cells_width = cell * keys - line;
  cells_height = cell * queries - line;
  label_step = cell >= text ? 1 : (text + gap / 4 + cell - 1) / cell;
  upwards = !fit_side_by_side(options.key_labels, cell);

  query_name = gap + text / 2;
  query_labels_right =
      gap + text + (options.query_labels.empty() ? 0 : gap / 2 + widest(options.query_labels));
  const int first_column = query_labels_right + gap / 2;
  int picture_cells = 0;
  picture_width = 0;
  if (options.picture) {
    picture_cells = cell * static_cast<int>(options.picture->size(1)) - line;
    picture_width = std::max(picture_cells, Canvas::text_width(options.picture_title));
  }
  picture = first_column + (picture_width - picture_cells) / 2;
  heads = first_column + (options.picture ? picture_width + gap : 0);
  head_width =
      std::max({cells_width, widest(options.titles), Canvas::text_width(options.key_name)});
  scale = heads + heads_count * (head_width + gap);
  width = scale + kScaleWidth + gap / 2 + Canvas::text_width(scale_label) + gap;

  scale_height = std::max(cells_height, 3 * text);
  titles = gap + text / 2;
  const int tallest = std::max(scale_height, Canvas::text_width(options.query_name));
  middle = gap + text + gap / 2 + tallest / 2;
  top = middle - cells_height / 2;
  const int bottom = top + cells_height;
  key_labels = bottom + gap / 2 + (upwards ? 0 : text / 2);
  const int labels_height = upwards ? widest(options.key_labels) : text;
  key_name = bottom + gap / 2 + text / 2;
  if (!options.key_labels.empty()) key_name += labels_height + gap / 2;
  height = std::max(key_name + text / 2, middle + (tallest + text) / 2) + gap;
}

int HeatMapLayout::head(int64_t index) const {
  return heads + static_cast<int>(index) * (head_width + kHeatMapGap) +
         (head_width - cells_width) / 2;
}

}  // namespace heed::examples
