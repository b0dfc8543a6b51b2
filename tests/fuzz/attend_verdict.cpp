#include "attend_verdict.h"

#include <ATen/TensorOperators.h>

#include <cmath>

#include "support/expect.h"

namespace heed::fuzz {

bool is_dense(const at::Tensor& tensor, int64_t rank) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.is_cpu() &&
         tensor.dim() == rank;
}

bool has_attention_dtype(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 ||
         dtype == at::kHalf;
}

bool are_in_range(const AttendOptions& options) {
  const auto scale = options.scale(), softcap = options.softcap();
  const auto left = options.left_window(), right = options.right_window();
  if (options.window() && (left || right)) return false;
  return options.window().value_or(1) >= 1 && left.value_or(0) >= 0 && right.value_or(0) >= 0 &&
         options.dropout() >= 0.0 && options.dropout() < 1.0 &&
         std::isfinite(scale.value_or(1.0)) && scale.value_or(1.0) != 0.0 &&
         std::isfinite(softcap.value_or(1.0)) && softcap.value_or(1.0) > 0.0;
}

bool are_representable(const AttendOptions& options, at::ScalarType dtype) {
  const double scale = options.scale().value_or(1.0), softcap = options.softcap().value_or(1.0);
  const double most = dtype == at::kDouble ? 1e150 : 1e18;
  return (dtype == at::kDouble || std::isfinite(static_cast<float>(scale))) && softcap <= most &&
         softcap >= 1.0 / most;
}

bool fits_scores(const at::Tensor& scores, int64_t B, int64_t H, int64_t L, int64_t S,
                 MaskBatch order) {
  const auto size_is = [&](int64_t dim, int64_t size) { return scores.size(dim) == size; };
  const auto may_be_one = [&](int64_t dim, int64_t size) {
    return size_is(dim, size) || size_is(dim, 1);
  };
  const auto fits_batch = [&] {
    const auto n = scores.size(0);
    return order == MaskBatch::each ? may_be_one(0, B) : n >= 1 && B % n == 0;
  };
  if (is_dense(scores, 2)) return size_is(0, L) && size_is(1, S);
  if (is_dense(scores, 3)) return fits_batch() && may_be_one(1, L) && size_is(2, S);
  return is_dense(scores, 4) && fits_batch() && may_be_one(1, H) && may_be_one(2, L) &&
         size_is(3, S);
}

bool is_mask(const at::Tensor& mask, int64_t B, int64_t H, int64_t L, int64_t S, MaskBatch order) {
  return fits_scores(mask, B, H, L, S, order) &&
         at::isIntegralType(mask.scalar_type(), /*includeBool=*/true);
}

double tolerance(at::ScalarType dtype, double largest_score) {
  const bool half = dtype == at::kBFloat16 || dtype == at::kHalf;
  const auto scores = (64.0 + largest_score) * test::unit_roundoff(half ? at::kFloat : dtype);
  return std::min(scores + (half ? 4.0 * test::unit_roundoff(dtype) : 0.0), 2.0);
}

double gradient_tolerance(double forward, const at::Tensor& expected) {
  const auto largest = expected.numel() == 0 ? 0.0 : expected.abs().max().item<double>();
  return 16.0 * forward * std::max(1.0, largest);
}

}  // namespace heed::fuzz
