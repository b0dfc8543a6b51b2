// SPDX-License-Identifier: BSD-3-Clause
#include <heed/alibi.h>

#include <ATen/ops/empty.h>

#include <cmath>

#include "core/check_memory.h"
#include "core/checks.h"

namespace heed {

at::Tensor alibi_slopes(int64_t heads, at::Device device) {
  detail::check_positive("alibi_slopes", "heads", heads);
  detail::check_memory("alibi_slopes", "slopes", {heads}, at::kFloat);
  int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  const auto slope = [](int64_t n, int64_t of) {
    return static_cast<float>(std::exp2(-8.0 * static_cast<double>(n) / static_cast<double>(of)));
  };
  auto slopes = at::empty({heads}, at::kFloat);
  auto* next = slopes.mutable_data_ptr<float>();
  for (int64_t h = 0; h < power; ++h) *next++ = slope(h + 1, power);
  for (int64_t h = 0; h < heads - power; ++h) *next++ = slope(2 * h + 1, 2 * power);
  return slopes.to(device);
}

}  // namespace heed
