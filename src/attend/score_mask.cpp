#include "attend/score_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/minimum.h>

namespace heed::detail {

at::Tensor allowed_keys(const Problem& problem) {
  if (!problem.causal && !problem.window) return problem.mask;
  const auto options = problem.query.options().dtype(at::kLong).requires_grad(false);
  const auto first = problem.position(0);
  const auto keys = at::arange(problem.key_length(), options);
  const auto queries = at::arange(first, first + problem.query_length(), options).unsqueeze(1);
  auto allowed = problem.mask;
  const auto intersect = [&](const at::Tensor& mask) {
    allowed = allowed.defined() ? at::bitwise_and(allowed, mask) : mask;
  };
  if (problem.window) intersect(keys.gt(queries - *problem.window));
  if (problem.causal) {
    intersect(keys.le(queries));
  } else {
    intersect(keys.lt(queries + *problem.window));
  }
  return allowed;
}

at::Tensor added_scores(const Problem& problem, at::ScalarType dtype) {
  at::Tensor added;
  if (problem.bias.defined()) added = problem.bias.to(dtype);
  if (!problem.alibi_slopes.defined()) return added;
  // Counted from the first query: positions near the queries are then small, and exact.
  const auto positions = [&](int64_t first) {
    return at::arange(first, problem.query_length(), problem.query.options().dtype(at::kLong))
        .to(problem.alibi_slopes.scalar_type());
  };
  const auto apart = positions(0).unsqueeze(1) - positions(-problem.position(0));
  // Minus the distance; not by abs, which the meta device lacks.
  const auto alibi =
      (problem.alibi_slopes.view({1, -1, 1, 1}) * at::minimum(apart, apart.neg())).to(dtype);
  return added.defined() ? added + alibi : alibi;
}

at::Tensor score_mask(const Problem& problem, at::ScalarType bias_dtype) {
  auto allowed = allowed_keys(problem);
  auto added = added_scores(problem, bias_dtype);
  if (!added.defined()) return allowed;
  return allowed.defined() ? added.masked_fill(allowed.bitwise_not(), kHiddenScore) : added;
}

at::Tensor queries_without_keys(const at::Tensor& score_mask) {
  const bool boolean = score_mask.scalar_type() == at::kBool;
  const auto seen = boolean ? score_mask : score_mask.detach().ne(kHiddenScore);
  return seen.any(/*dim=*/-1, /*keepdim=*/true).bitwise_not_();
}

}  // namespace heed::detail
