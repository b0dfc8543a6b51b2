// SPDX-License-Identifier: BSD-3-Clause
#include "errors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>

#include <limits>

#include "support/expect.h"

namespace heed::test {

namespace {

at::Tensor magnitude(const at::Tensor& tensor) { return tensor.detach().to(at::kDouble).abs(); }

/// [B, G, ...] to [B, H, ...].
at::Tensor for_each_head(const at::Tensor& tensor, int64_t heads) {
  return tensor.repeat_interleave(heads / tensor.size(1), 1);
}

at::Tensor sum_of_groups(const at::Tensor& tensor, int64_t groups) {
  return tensor.unflatten(1, {groups, tensor.size(1) / groups}).sum(2);
}

double smallest_subnormal(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::numeric_limits<double>::denorm_min();
    case at::kFloat:
      return std::numeric_limits<float>::denorm_min();
    case at::kBFloat16:
      return 0x1p-133;
    default:
      return 0x1p-24;
  }
}

}  // namespace

at::Tensor precise_weights(const at::Tensor& weights, at::ScalarType dtype) {
  const auto smallest =
      dtype == at::kDouble ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min();
  return weights.clamp_min(smallest / unit_roundoff(dtype));
}

TermSums term_sums(const Operands& operands) {
  const auto heads = operands.query.size(1), groups = operands.key.size(1);
  const auto query = magnitude(operands.query), gradient = magnitude(operands.output_gradient);
  const auto key = for_each_head(magnitude(operands.key), heads);
  const auto value = for_each_head(magnitude(operands.value), heads);
  const auto& weights = operands.weights;
  const auto weight_gradients = at::matmul(gradient, value.transpose(2, 3));  // [B, H, L, S]
  const auto mean = (weights * weight_gradients).sum(3, /*keepdim=*/true);
  const auto score_gradients = weights * (weight_gradients + mean) * operands.scale;
  return {at::matmul(weights, value), at::matmul(score_gradients, key),
          sum_of_groups(at::matmul(score_gradients.transpose(2, 3), query), groups),
          sum_of_groups(at::matmul(weights.transpose(2, 3), gradient), groups)};
}

double largest_score(const Operands& operands) {
  const auto key = for_each_head(magnitude(operands.key), operands.query.size(1));
  return at::matmul(magnitude(operands.query), key.transpose(2, 3)).max().item<double>() *
         operands.scale;
}

double roundoffs(const at::Tensor& actual, const at::Tensor& exact, const at::Tensor& term_sum,
                 double floor) {
  const auto dtype = actual.scalar_type();
  const auto steps = floor * smallest_subnormal(dtype);
  const auto error = (actual.detach().to(at::kDouble) - exact).abs() - steps;
  const auto relative = error / (term_sum * unit_roundoff(dtype));
  // Sums of nothing but zeros divide by zero.
  return relative.masked_fill(error <= 0, 0.0).max().item<double>();
}

}  // namespace heed::test
