#pragma once

#include <string>
#include <vector>

#include "heat_map.h"

namespace heed::examples {

/// The position of each part, in pixels. From left to right: the name and labels of the queries,
/// the picture, the heads, the color scale. A column is as wide as its matrix or as the texts above
/// and below it.
struct HeatMapLayout {
  /// For `heads` matrices [queries, keys] and a scale that ends at `scale_label`.
  HeatMapLayout(int heads, int queries, int keys, const HeatMapOptions& options,
                const std::string& scale_label);

  /// The left edge of a head's cells.
  int head(int64_t index) const;

  int cell, line, cells_width, cells_height;  ///< a cell, and the line to the next cell
  int query_name, query_labels_right;         ///< the name's middle
  int picture, picture_width;  ///< the left edge of its cells, the width of its column
  int heads, head_width;       ///< the left edge of the first column, the width of each
  int scale, scale_height, width;
  int titles, middle, top;  ///< the titles' middle; the cells' middle and top
  int key_labels;           ///< the middle of the first line; the end of labels that run upwards
  int key_name, height;     ///< the name's middle
  bool upwards;             ///< whether key labels run upwards because they would touch
  int label_step;           ///< there is room for a label at every label_step-th cell
};

constexpr int kHeatMapGap = 24;
constexpr int kScaleWidth = 16;

}  // namespace heed::examples
