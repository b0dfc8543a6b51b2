// SPDX-License-Identifier: BSD-3-Clause
#include "canvas.h"

#include <fmt/ranges.h>
#include <utf8proc.h>

#include <cmath>
#include <new>
#include <stdexcept>

#include "files.h"

namespace heed::examples {

namespace {

constexpr int kFontSize = 22;  // in pixels, of which letters fill the height
constexpr Color kTextColor = {50, 50, 50};
constexpr double kQuarterTurn = 1.5707963267948966;

/// The characters of `text`, each of which cairo can draw.
std::vector<std::string> characters_of(const std::string& text) {
  std::vector<std::string> characters;
  const auto* next = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto left = static_cast<utf8proc_ssize_t>(text.size());
  while (left > 0) {
    utf8proc_int32_t code = 0;
    auto length = utf8proc_iterate(next, left, &code);
    if (length <= 0) {
      characters.emplace_back("\uFFFD");
      length = 1;
    } else if (utf8proc_category(code) == UTF8PROC_CATEGORY_CC) {
      characters.emplace_back(" ");
    } else {
      characters.emplace_back(reinterpret_cast<const char*>(next), static_cast<size_t>(length));
    }
    next += length;
    left -= length;
  }
  return characters;
}

/// Letters as wide upwards as to the right, and gray at their edges whatever the screen.
void select_font(cairo_t* context) {
  const std::unique_ptr<cairo_font_options_t, void (*)(cairo_font_options_t*)> options(
      cairo_font_options_create(), cairo_font_options_destroy);
  cairo_font_options_set_antialias(options.get(), CAIRO_ANTIALIAS_GRAY);
  cairo_font_options_set_hint_style(options.get(), CAIRO_HINT_STYLE_NONE);
  cairo_font_options_set_hint_metrics(options.get(), CAIRO_HINT_METRICS_OFF);
  cairo_set_font_options(context, options.get());
  cairo_select_font_face(context, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(context, kFontSize);
}

cairo_text_extents_t extents(cairo_t* context, const std::string& text) {
  cairo_text_extents_t extents;
  cairo_text_extents(context, text.c_str(), &extents);
  return extents;
}

void check(cairo_status_t status, const std::string& what) {
  if (status == CAIRO_STATUS_NO_MEMORY) throw std::bad_alloc();
  if (status != CAIRO_STATUS_SUCCESS) {
    throw std::runtime_error(
        fmt::format("cannot draw {}: {}", what, cairo_status_to_string(status)));
  }
}

}  // namespace

Canvas::Canvas(int width, int height)
    : surface_(cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height),
               cairo_surface_destroy),
      context_(cairo_create(surface_.get()), cairo_destroy) {
  check(cairo_surface_status(surface_.get()),
        fmt::format("a picture of {} x {} pixels", width, height));
  check(cairo_status(context_.get()), "a picture");
  select_font(context_.get());
  fill(0, 0, width, height, {255, 255, 255});
}

void Canvas::use_color(Color color) {
  cairo_set_source_rgb(context_.get(), color[0] / 255.0, color[1] / 255.0, color[2] / 255.0);
}

void Canvas::fill(int x, int y, int width, int height, Color color) {
  use_color(color);
  cairo_rectangle(context_.get(), x, y, width, height);
  cairo_fill(context_.get());
}

void Canvas::line(const std::vector<std::pair<double, double>>& points, int width, Color color) {
  use_color(color);
  cairo_set_line_cap(context_.get(), CAIRO_LINE_CAP_ROUND);
  cairo_set_line_join(context_.get(), CAIRO_LINE_JOIN_ROUND);
  cairo_set_line_width(context_.get(), points.size() == 1 ? 3 * width : width);
  cairo_new_path(context_.get());  // not from where the last text ended
  for (const auto& [x, y] : points) cairo_line_to(context_.get(), x, y);
  if (points.size() == 1) cairo_close_path(context_.get());  // without which cairo draws nothing
  cairo_stroke(context_.get());
}

void Canvas::write(double x, double y, const std::string& text, Align align, Direction direction) {
  const auto letters = fmt::format("{}", fmt::join(characters_of(text), ""));
  const auto capital = extents(context_.get(), "H");
  const double width = extents(context_.get(), letters).x_advance;
  const double before = align == Align::kStart ? 0 : align == Align::kEnd ? width : width / 2;
  use_color(kTextColor);
  cairo_save(context_.get());
  cairo_translate(context_.get(), x, y);
  if (direction == Direction::kUp) cairo_rotate(context_.get(), -kQuarterTurn);
  cairo_move_to(context_.get(), -before, -capital.y_bearing - capital.height / 2);
  cairo_show_text(context_.get(), letters.c_str());
  cairo_restore(context_.get());
}

void Canvas::save_png(const std::string& path) const {
  check(cairo_status(context_.get()), path);
  std::string png;
  const auto append = [](void* to, const unsigned char* data, unsigned int size) {
    static_cast<std::string*>(to)->append(reinterpret_cast<const char*>(data), size);
    return CAIRO_STATUS_SUCCESS;
  };
  check(cairo_surface_write_to_png_stream(surface_.get(), append, &png), path);
  write_atomically(path, png);
}

int Canvas::text_width(const std::string& text) {
  const Canvas ruler(1, 1);
  const auto letters = fmt::format("{}", fmt::join(characters_of(text), ""));
  return static_cast<int>(std::ceil(extents(ruler.context_.get(), letters).x_advance));
}

int Canvas::text_height() { return kFontSize; }

std::string shortened(const std::string& text, int width) {
  if (Canvas::text_width(text) <= width) return text;
  std::string beginning;
  for (const auto& character : characters_of(text)) {
    if (Canvas::text_width(beginning + character + "…") > width) break;
    beginning += character;
  }
  return beginning + "…";
}

}  // namespace heed::examples
