#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <limits>

#include "attend/paths/paths.h"
#include "attend/score_mask.h"

namespace heed::detail::fused_path {

namespace {

/// Whether the last dimension is that of unit stride, and no other: LibTorch's CPU kernel writes
/// its output in rows, but lays it out by the order of the query's strides.
bool lies_in_rows(const at::Tensor& tensor) {
  const auto strides = tensor.strides();
  return strides[3] == 1 && std::count(strides.begin(), strides.end(), 1) == 1;
}

/// LibTorch's fused kernels want equal head dims and rows: zeros appended to query and key leave
/// their products as they are, and those appended to value are cut off again.
at::Tensor pad_head_dim(const at::Tensor& tensor, int64_t head_dim) {
  const auto missing = head_dim - tensor.size(3);
  if (missing > 0) return at::constant_pad_nd(tensor, {0, missing});
  return lies_in_rows(tensor) ? tensor : tensor.contiguous();
}

/// bfloat16 and float16 scores are float32 inside the CPU kernel, which takes a float32 bias.
at::ScalarType bias_dtype(const at::Tensor& query) {
  const auto dtype = query.scalar_type();
  return query.is_cpu() && dtype != at::kDouble ? at::kFloat : dtype;
}

struct ScoreArguments {
  at::Tensor mask;  // undefined, or as at::scaled_dot_product_attention takes it
  bool causal;
};

ScoreArguments score_arguments(const Problem& problem) {
  // LibTorch multiplies what causal hides, -inf, by the scale: NaN unless that is above 0, as
  // float32 too.
  const bool plain_causal = problem.causal && !problem.mask.defined() && !problem.bias.defined() &&
                            !problem.alibi_slopes.defined() && !problem.window &&
                            problem.query_length() == problem.key_length() &&
                            problem.scale >= std::numeric_limits<float>::min();
  if (plain_causal) return {{}, true};
  return {score_mask(problem, bias_dtype(problem.query)), false};
}

/// A mask that is the same for all queries lets the H / G query heads of a group become rows:
/// keys and values are then read once a group, and the result is a view.
bool can_fold_heads(const Problem& problem, const ScoreArguments& scores) {
  if (problem.heads() == problem.groups() || scores.causal) return false;
  const auto& mask = scores.mask;  // causal and window alone make it [L, S]
  if (mask.defined() && (mask.dim() != 4 || mask.size(1) != 1 || mask.size(2) != 1)) return false;
  // [B, G, H / G, L, D] merges its middle axes without a copy.
  return problem.query_length() == 1 ||
         problem.query.stride(1) == problem.query_length() * problem.query.stride(2);
}

at::Tensor call_sdpa(const Problem& problem, const at::Tensor& query, const at::Tensor& key,
                     const at::Tensor& value, const ScoreArguments& scores) {
  std::optional<at::Tensor> mask;
  if (scores.mask.defined()) mask = scores.mask;
  const auto sdpa = [&](const at::Tensor& rows) {
    return at::scaled_dot_product_attention(rows, key, value, mask, problem.dropout, scores.causal,
                                            problem.scale, rows.size(1) != key.size(1));
  };
  if (!can_fold_heads(problem, scores)) return sdpa(query);
  const auto batch = problem.batch();
  const auto rows = problem.heads() / problem.groups() * problem.query_length();
  return sdpa(query.reshape({batch, problem.groups(), rows, query.size(3)}))
      .reshape({batch, problem.heads(), problem.query_length(), value.size(3)});
}

}  // namespace

// LibTorch's kernels for CUDA take a bias in the query's dtype alone, to which ALiBi's must not be
// rounded.
bool takes(const Problem& problem) {
  const auto dtype = problem.query.scalar_type();
  const bool would_round = problem.alibi_slopes.defined() && !problem.query.is_cpu() &&
                           (dtype == at::kHalf || dtype == at::kBFloat16);
  return !problem.query.is_meta() && !problem.is_empty() && !problem.has_tangent() &&
         problem.wanted == Wanted::output && !problem.part && problem.softcap == 0.0 &&
         !problem.sinks.defined() && !would_round;
}

Attended attend(const Problem& problem) {
  auto scores = score_arguments(problem);
  at::Tensor keyless;
  if (scores.mask.defined() && !problem.query.is_cpu()) {
    // Only the CPU kernel promises 0 and finite gradients for a query without keys; elsewhere such
    // a query sees all keys and its output is overwritten.
    keyless = queries_without_keys(scores.mask);
    scores.mask = scores.mask.scalar_type() == at::kBool ? scores.mask.bitwise_or(keyless)
                                                         : scores.mask.masked_fill(keyless, 0.0);
  }
  const auto head_dim = std::max(problem.head_dim(), problem.value_head_dim());
  auto output =
      call_sdpa(problem, pad_head_dim(problem.query, head_dim), pad_head_dim(problem.key, head_dim),
                pad_head_dim(problem.value, head_dim), scores);
  if (problem.value_head_dim() < head_dim) output = output.narrow(3, 0, problem.value_head_dim());
  return {keyless.defined() ? output.masked_fill(keyless, 0.0) : output, {}};
}

}  // namespace heed::detail::fused_path
