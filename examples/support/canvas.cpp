#include "canvas.h"

#include <algorithm>
#include <new>

#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb/stb_easy_font.h>
#include <stb/stb_image_write.h>

#include "atomic_write.h"

namespace heed::examples {

namespace {

constexpr int kChannels = 3;
constexpr int kTextScale = 3;      // pixels for each of the font's
constexpr int kCapitalHeight = 7;  // in the font's pixels
constexpr Color kTextColor = {60, 60, 60};

/// A corner of a rectangle as stb_easy_font lays it out.
struct Vertex {
  float x, y, z;
  uint8_t color[4];
};

}  // namespace

Canvas::Canvas(int width, int height)
    : width_(width), height_(height), pixels_(size_t{kChannels} * width * height, 255) {}

void Canvas::fill(int x, int y, int width, int height, Color color) {
  const int left = std::max(x, 0), right = std::min(x + width, width_);
  const int bottom = std::min(y + height, height_);
  for (int row = std::max(y, 0); row < bottom; ++row) {
    for (int column = left; column < right; ++column) {
      std::copy(color.begin(), color.end(),
                pixels_.begin() + kChannels * (static_cast<int64_t>(row) * width_ + column));
    }
  }
}

void Canvas::write(int x, int y, const std::string& text, bool upwards) {
  std::string letters = text;  // the font's function takes no const
  std::vector<Vertex> vertices(400 * (letters.size() + 1));
  const int quads = stb_easy_font_print(0, 0, letters.data(), nullptr, vertices.data(),
                                        static_cast<int>(vertices.size() * sizeof(Vertex)));
  for (int quad = 0; quad < quads; ++quad) {
    const Vertex& first = vertices[4 * quad];
    const Vertex& opposite = vertices[4 * quad + 2];
    const int left = kTextScale * static_cast<int>(first.x);
    const int top = kTextScale * static_cast<int>(first.y);
    const int width = kTextScale * static_cast<int>(opposite.x - first.x);
    const int height = kTextScale * static_cast<int>(opposite.y - first.y);
    if (upwards) {
      fill(x + top, y - left - width, height, width, kTextColor);
    } else {
      fill(x + left, y + top, width, height, kTextColor);
    }
  }
}

void Canvas::save_png(const std::string& path) const {
  std::string png;
  const auto append = [](void* to, void* data, int size) {
    static_cast<std::string*>(to)->append(static_cast<const char*>(data),
                                          static_cast<size_t>(size));
  };
  if (stbi_write_png_to_func(append, &png, width_, height_, kChannels, pixels_.data(),
                             kChannels * width_) == 0) {
    throw std::bad_alloc();  // all that can fail in memory
  }
  write_atomically(path, png);
}

int Canvas::text_width(const std::string& text) {
  std::string letters = text;
  return kTextScale * stb_easy_font_width(letters.data());
}

int Canvas::text_height() { return kTextScale * kCapitalHeight; }

}  // namespace heed::examples
