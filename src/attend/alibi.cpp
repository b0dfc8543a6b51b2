#include <heed/alibi.h>

#include <ATen/ops/tensor.h>

#include <cmath>
#include <vector>

#include "core/checks.h"

namespace heed {

at::Tensor alibi_slopes(int64_t heads, at::Device device) {
  detail::check_positive("alibi_slopes", "heads", heads);
  int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  const auto slope = [](int64_t n, int64_t of) {
    return static_cast<float>(std::exp2(-8.0 * static_cast<double>(n) / static_cast<double>(of)));
  };
  std::vector<float> slopes;
  slopes.reserve(static_cast<size_t>(heads));
  for (int64_t h = 0; h < power; ++h) slopes.push_back(slope(h + 1, power));
  for (int64_t h = 0; h < heads - power; ++h) slopes.push_back(slope(2 * h + 1, 2 * power));
  return at::tensor(slopes).to(device);
}

}  // namespace heed
