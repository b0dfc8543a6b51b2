// SPDX-License-Identifier: BSD-3-Clause
#include "attend/quantize.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <heed/quantize.h>

#include <limits>
#include <utility>

#include "attend/sequences.h"
#include "core/checks.h"
#include "core/dtypes.h"

namespace heed {

std::tuple<at::Tensor, at::Tensor> quantize_int8(const at::Tensor& heads) {
  constexpr auto kName = "quantize_int8";
  constexpr float kLargest = 127.0F;
  detail::check_defined(kName, "heads", heads);
  HEED_CHECK(heads.dim() >= 1, "{}: heads rank (0) must be at least 1", kName);
  detail::check_floating(kName, "heads", heads);
  const at::NoGradGuard no_grad;
  if (heads.size(-1) == 0) {
    return {heads.to(at::kChar),
            at::empty(heads.sizes().slice(0, heads.dim() - 1), heads.options().dtype(at::kFloat))
                .zero_()};
  }
  const auto largest = heads.abs().amax(-1, /*keepdim=*/true).to(at::kFloat);
  const auto scales = largest.div(kLargest).masked_fill_(largest.isfinite().logical_not_(),
                                                         std::numeric_limits<double>::quiet_NaN());
  // A row of zeros has the scale 0, and 0 / 0 is NaN, which int8 lacks.
  const auto numbers = heads.div(scales).nan_to_num_(0.0).round_().clamp_(-kLargest, kLargest);
  return {numbers.to(at::kChar), scales.squeeze(-1)};
}

namespace detail {

Problem dequantized(Problem problem) {
  problem = without_pages(std::move(problem));
  const auto dtype = problem.query.scalar_type();
  const auto widen = [&](const at::Tensor& numbers, const at::Tensor& scales) {
    return numbers.mul(scales.to(compute_dtype(dtype)).unsqueeze(-1)).to(dtype);
  };
  problem.key = widen(problem.key, std::exchange(problem.key_scales, {}));
  problem.value = widen(problem.value, std::exchange(problem.value_scales, {}));
  return problem;
}

}  // namespace detail

}  // namespace heed
