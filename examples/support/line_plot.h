#pragma once

#include <string>
#include <utility>
#include <vector>

#include "canvas.h"

namespace heed::examples {

/// A line of a plot.
struct Series {
  std::string name;
  Color color;
  std::vector<std::pair<double, double>> points;  ///< x and y, by x
};

/// Writes lines over a common pair of axes as a PNG. Throws std::runtime_error when no series has a
/// point or the file cannot be written.
void write_line_plot(const std::string& path, const std::vector<Series>& series,
                     const std::string& x_name, const std::string& y_name);

}  // namespace heed::examples
