// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "color.h"

namespace heed::examples {

/// A line of a plot.
struct Series {
  std::string name;
  Color color;
  /// Points (x, y), sorted by x. The line has a gap where x or y is NaN or infinite.
  std::vector<std::pair<double, double>> points;
};

/// Draws lines with common axes and writes them as a PNG; a point without neighbors is a dot.
/// Throws std::runtime_error when no series has a point or the file cannot be written.
void write_line_plot(const std::string& path, const std::vector<Series>& series,
                     const std::string& x_name, const std::string& y_name);

}  // namespace heed::examples
