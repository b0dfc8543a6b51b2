#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace heed::examples {

using Color = std::array<uint8_t, 3>;

/// An RGB picture to draw on, white at first. Positions are in pixels from the top left corner.
class Canvas {
 public:
  Canvas(int width, int height);

  /// What lies outside the picture is left out.
  void fill(int x, int y, int width, int height, Color color);

  /// Draws `text` with its top left corner at (x, y); upwards from (x, y) when `upwards`.
  void write(int x, int y, const std::string& text, bool upwards = false);

  /// Throws std::runtime_error when the file cannot be written.
  void save_png(const std::string& path) const;

  static int text_width(const std::string& text);
  static int text_height();

 private:
  int width_;
  int height_;
  std::vector<uint8_t> pixels_;
};

}  // namespace heed::examples
