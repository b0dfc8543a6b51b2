// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cairo/cairo.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "color.h"

namespace heed::examples {

enum class Align { kStart, kMiddle, kEnd };
enum class Direction { kRight, kUp };

/// A picture to draw on, initially white. Positions are in pixels from the top left corner.
class Canvas {
 public:
  /// Throws std::runtime_error when cairo cannot draw that many pixels.
  Canvas(int width, int height);

  void fill(int x, int y, int width, int height, Color color);

  /// Draws a line through `points`, or a dot of three times its width if there is only one point.
  void line(const std::vector<std::pair<double, double>>& points, int width, Color color);

  /// Writes `text` with its start, middle or end at (x, y), its capitals centered across.
  void write(double x, double y, const std::string& text, Align align = Align::kStart,
             Direction direction = Direction::kRight);

  /// Throws std::runtime_error when the file cannot be written.
  void save_png(const std::string& path) const;

  /// Texts are UTF-8. An invalid byte becomes U+FFFD, and a control character becomes a space.
  static int text_width(const std::string& text);

  /// The height of a line of text, from the top of the tallest letters to the bottom of the lowest.
  static int text_height();

 private:
  void use_color(Color color);

  std::unique_ptr<cairo_surface_t, void (*)(cairo_surface_t*)> surface_;
  std::unique_ptr<cairo_t, void (*)(cairo_t*)> context_;
};

/// Returns `text` if it is at most `width` pixels wide, else its beginning and an ellipsis.
std::string shortened(const std::string& text, int width);

}  // namespace heed::examples
