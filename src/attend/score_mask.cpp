// SPDX-License-Identifier: BSD-3-Clause
#include "attend/score_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/minimum.h>

#include "core/block_mask.h"
#include "core/to_device.h"

namespace heed::detail {

namespace {

at::Tensor range(const Problem& problem, int64_t first, int64_t count) {
  return at::arange(first, first + count, problem.query.options().dtype(at::kLong));
}

/// The positions of the queries: int64 [B or 1, L].
at::Tensor query_positions(const Problem& problem) {
  return problem.positions.defined()
             ? problem.positions
             : range(problem, problem.position(0), problem.query_length()).unsqueeze(0);
}

/// The positions of the queries as [L, 1] or [B or 1, 1, L, 1], which broadcast over keys.
at::Tensor positions_of_rows(const Problem& problem) {
  const auto positions = query_positions(problem);
  return problem.positions.defined() ? positions.unsqueeze(1).unsqueeze(3)
                                     : positions.squeeze(0).unsqueeze(1);
}

/// Mask or bias with a batch for each sequence, or one batch for all.
at::Tensor scores_of_batches(const Problem& problem, const at::Tensor& scores) {
  const auto count = scores.defined() ? scores.size(0) : 1;
  if (count == 1 || count == problem.batch()) return scores;
  const auto times = problem.batch() / count;
  return problem.mask_batch == MaskBatch::repeated ? scores.repeat_interleave(times, 0)
                                                   : scores.repeat({times, 1, 1, 1});
}

/// Whether windows let a query see a key: bool, broadcastable to [B, 1, L, S].
at::Tensor in_window(const Problem& problem, const at::Tensor& queries, const at::Tensor& keys) {
  at::Tensor near;
  if (problem.left_window) near = keys.ge(queries - *problem.left_window);
  if (problem.right_window) {
    const auto after = keys.le(queries + *problem.right_window);
    near = near.defined() ? at::bitwise_and(near, after) : after;
  }
  if (!problem.global_keys.defined()) return near;
  const auto far = at::bitwise_or(problem.global_rows.unsqueeze(1).unsqueeze(3),
                                  problem.global_keys.unsqueeze(1).unsqueeze(2));
  return at::bitwise_or(near, far);
}

/// The biases of relative positions, [B or 1, H, L, S].
at::Tensor relative_scores(const Problem& problem) {
  const auto& table = problem.relative_bias;
  const auto reach = table.size(1) / 2;
  auto of_rows = problem.relative_rows, of_keys = problem.relative_keys;
  if (!of_keys.defined()) {  // they are the positions
    of_rows = query_positions(problem);
    of_keys = range(problem, 0, problem.key_length()).unsqueeze(0);
  }
  const auto apart = of_keys.unsqueeze(1) - of_rows.unsqueeze(2);  // [B or 1, L, S]
  const auto index = apart.clamp(-reach, reach) + reach;
  // The meta device has no index_select.
  return table.gather(1, index.flatten().unsqueeze(0).expand({table.size(0), -1}))
      .view({table.size(0), index.size(0), index.size(1), index.size(2)})
      .transpose(0, 1);
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
  auto allowed = with_block_mask(scores_of_batches(problem, problem.mask), problem,
                                 {0, problem.query_length()}, {0, problem.key_length()});
  const auto intersect = [&](const at::Tensor& mask) {
    allowed = allowed.defined() ? at::bitwise_and(allowed, mask) : mask;
  };
  if (problem.documents.defined()) {
    intersect(same_document(problem.documents, problem.key_documents));
  }
  if (!problem.hides_by_distance()) return allowed;
  const auto keys = range(problem, 0, problem.key_length());
  const auto queries = positions_of_rows(problem);
  if (problem.has_window()) intersect(in_window(problem, queries, keys));
  if (problem.causal) intersect(keys.le(queries));
  return allowed;
}

at::Tensor added_scores(const Problem& problem, at::ScalarType dtype) {
  at::Tensor added;
  const auto add = [&](const at::Tensor& scores) {
    added = added.defined() ? added + scores.to(dtype) : scores.to(dtype);
  };
  if (problem.bias.defined()) add(scores_of_batches(problem, problem.bias));
  if (const auto& slopes = problem.alibi_slopes; slopes.defined()) {
    const auto apart = (positions_of_rows(problem) - range(problem, 0, problem.key_length()))
                           .to(slopes.scalar_type());
    // min(d, -d) is minus the distance. The meta device has no abs.
    add(slopes.unsqueeze(2).unsqueeze(3) * at::minimum(apart, apart.neg()));
  }
  if (problem.relative_bias.defined()) add(relative_scores(problem));
  return added;
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
