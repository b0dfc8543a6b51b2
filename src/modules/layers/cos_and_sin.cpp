// SPDX-License-Identifier: BSD-3-Clause
#include "modules/layers/cos_and_sin.h"

#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sin.h>

#include <cmath>

namespace heed::detail {

std::pair<at::Tensor, at::Tensor> cos_and_sin(const at::Tensor& angles) {
  // Already for 128 numbers, LibTorch's operators let MKL wake a team of threads. With two threads
  // this was measured to take longer than a loop.
  constexpr int64_t kFew = 512;
  if (!angles.is_cpu() || angles.numel() > kFew) return {angles.cos(), angles.sin()};
  const auto contiguous = angles.contiguous();
  const auto cosines = at::empty(angles.sizes(), angles.options());
  const auto sines = at::empty(angles.sizes(), angles.options());
  const auto* from = contiguous.const_data_ptr<double>();
  auto* cos = cosines.mutable_data_ptr<double>();
  auto* sin = sines.mutable_data_ptr<double>();
  for (int64_t i = 0; i < angles.numel(); ++i) {
    cos[i] = std::cos(from[i]);
    sin[i] = std::sin(from[i]);
  }
  return {cosines, sines};
}

}  // namespace heed::detail
