#include "score_mask.h"

#include <ATen/ops/logical_and.h>
#include <heed/masks.h>

#include <limits>

namespace heed::detail {

namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

}  // namespace

at::Tensor allowed_keys(const Problem& problem) {
  if (!problem.causal && !problem.window) return problem.mask;
  const auto length = problem.query_length();
  const auto key_length = problem.key_length();
  const auto device = problem.query.device();
  const auto positional =
      problem.window ? window_mask(length, key_length, *problem.window, problem.causal, device)
                     : causal_mask(length, key_length, device);
  return problem.mask.defined() ? at::logical_and(problem.mask, positional) : positional;
}

at::Tensor score_mask(const Problem& problem, at::ScalarType bias_dtype) {
  auto allowed = allowed_keys(problem);
  if (!problem.bias.defined()) return allowed;
  auto bias = problem.bias.to(bias_dtype);
  return allowed.defined() ? bias.masked_fill(allowed.logical_not(), kMinusInfinity) : bias;
}

at::Tensor queries_without_keys(const at::Tensor& score_mask) {
  const bool boolean = score_mask.scalar_type() == at::kBool;
  const auto seen = boolean ? score_mask : score_mask.detach().ne(kMinusInfinity);
  return seen.any(/*dim=*/-1, /*keepdim=*/true).logical_not_();
}

}  // namespace heed::detail
