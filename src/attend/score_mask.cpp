#include "attend/score_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/minimum.h>

#include "core/block_mask.h"
#include "core/to_device.h"

namespace heed::detail {

namespace {

at::Tensor range(const Problem& problem, int64_t first, int64_t count) {
  return at::arange(first, first + count, problem.query.options().dtype(at::kLong));
}

/// The positions of the queries: int64 [L, 1] or [B or 1, 1, L, 1].
at::Tensor query_positions(const Problem& problem) {
  if (problem.positions.defined()) return problem.positions.unsqueeze(1).unsqueeze(3);
  return range(problem, problem.position(0), problem.query_length()).unsqueeze(1);
}

}  // namespace

at::Tensor with_block_mask(const at::Tensor& mask, const Problem& problem, KeyRange queries,
                           KeyRange keys) {
  if (!problem.block_mask) return mask;
  const auto dense = problem.block_mask->bits().dense(queries.first, queries.last - queries.first,
                                                      keys.first, keys.last - keys.first);
  const auto shown = to_device(dense, problem.query.device());
  return mask.defined() ? at::bitwise_and(mask, shown) : shown;
}

at::Tensor allowed_keys(const Problem& problem) {
  auto allowed = with_block_mask(problem.mask, problem, {0, problem.query_length()},
                                 {0, problem.key_length()});
  const auto intersect = [&](const at::Tensor& mask) {
    allowed = allowed.defined() ? at::bitwise_and(allowed, mask) : mask;
  };
  if (problem.documents.defined()) {
    intersect(same_document(problem.documents, problem.key_documents));
  }
  if (!problem.causal && !problem.window) return allowed;
  const auto keys = range(problem, 0, problem.key_length());
  const auto queries = query_positions(problem);
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
  const auto apart = (query_positions(problem) - range(problem, 0, problem.key_length()))
                         .to(problem.alibi_slopes.scalar_type());
  // min(d, -d) is minus the distance. The meta device has no abs.
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
