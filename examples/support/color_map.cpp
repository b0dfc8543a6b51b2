#include "color_map.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace heed::examples {

namespace {

constexpr Color kEmpty = {215, 215, 220};

}  // namespace

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

Color ink(float value) {
  if (std::isnan(value)) return kEmpty;
  const auto gray = static_cast<uint8_t>(240 - 220 * std::clamp(value, 0.0F, 1.0F));
  return {gray, gray, gray};
}

}  // namespace heed::examples
