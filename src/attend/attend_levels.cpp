// SPDX-License-Identifier: BSD-3-Clause
#include "attend/attend_levels.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <heed/merge_attention.h>

#include <tuple>
#include <utility>
#include <vector>

#include "attend/attend_part.h"
#include "attend/choose_path.h"
#include "attend/sequences.h"
#include "core/direct.h"
#include "cpu/capability.h"

namespace heed::detail {

namespace {

/// Views the tokens [B * L, H, D] of B sequences as [B, H, L, D].
at::Tensor query_heads(const at::Tensor& tokens, int64_t sequences) {
  const auto length = tokens.size(0) / sequences;
  if (length > 1) return tokens.unflatten(0, {sequences, length}).transpose(1, 2);
  // A single query needs fewer views.
  return strided_view(tokens, {sequences, tokens.size(1), 1, tokens.size(2)},
                      {tokens.stride(0), tokens.stride(1), tokens.stride(1), tokens.stride(2)});
}

/// Views [B, H, L, D] as [B * L, H, D], and [B, H, L] as [B * L, H]; copies where no view can.
/// @{
at::Tensor output_rows(const at::Tensor& heads) {
  if (heads.size(2) > 1) return heads.transpose(1, 2).flatten(0, 1);
  return strided_view(heads, {heads.size(0), heads.size(1), heads.size(3)},
                      {heads.stride(0), heads.stride(1), heads.stride(3)});
}
at::Tensor lse_rows(const at::Tensor& lse) { return lse.transpose(1, 2).flatten(0, 1); }
/// @}

Problem problem_of(const PagedTensors& tensors, const PagedBatch& batch,
                   const AttendOptions& options) {
  const auto query = query_heads(batch.tokens.of(tensors.query), batch.count());
  auto problem = make_paged_problem(query, tensors.keys, tensors.values, batch.sequences, options);
  if (batch.parents.defined()) set_draft(problem, batch.parents, batch.lengths);
  return query.is_cpu() && has_kernels() ? problem : without_pages(std::move(problem));
}

at::Tensor one_after_another(const std::vector<at::Tensor>& parts) {
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

/// Output [n, H, Dv] and lse [n, H] of a level's tokens, one batch after the other. The output is
/// in the dtype of the computation if it is to be merged; else its lse may be any numbers. There is
/// an lse only if `merges`.
PartResult attend_level(const PagedTensors& tensors, const PagedLevel& level,
                        const AttendOptions& options, bool merges) {
  std::vector<at::Tensor> outputs, lses;
  for (const auto& batch : level.batches) {
    auto problem = problem_of(tensors, batch, options);
    problem.merged = !batch.is_whole;
    if (problem.merged) problem.wanted = Wanted::output_and_lse;
    const auto attended = attend_problem(problem);
    const auto& output = outputs.emplace_back(output_rows(attended.output));
    if (!merges) continue;
    lses.push_back(batch.is_whole ? output.new_empty(output.sizes().slice(0, 2))
                                  : lse_rows(attended.lse));
  }
  return {one_after_another(outputs), merges ? one_after_another(lses) : at::Tensor()};
}

PartResult merged(const PartResult& one, const PartResult& other) {
  const auto [output, lse] =
      merge_attention({one.output.unsqueeze(2), other.output.unsqueeze(2)},  // [n, H, 1, Dv]
                      {one.lse.unsqueeze(2), other.lse.unsqueeze(2)});
  return {output.squeeze(2), lse.squeeze(2)};
}

}  // namespace

at::Tensor attend_levels(const PagedTensors& tensors, const PagedCall& call,
                         const AttendOptions& options) {
  const auto& query = tensors.query;
  if (call.tokens() == 0) {
    return at::empty({0, query.size(1), tensors.values.size(3)}, query.options());
  }
  // Where attention to shared pages depends on the query's position, sequences of different lengths
  // cannot share them.
  const bool by_distance = options.window() || options.left_window() || options.right_window() ||
                           options.alibi_slopes() || options.relative_bias();
  const auto& levels = call.levels(!by_distance);
  const bool merges = levels.size() > 1;
  auto result = attend_level(tensors, levels.front(), options, merges);
  auto before = options;  // all queries see these keys; a sink counts only once
  before.causal(false).sinks(std::nullopt);
  for (size_t n = 1; n < levels.size(); ++n) {
    const auto& tokens = levels[n].tokens;
    const auto both = merged({tokens.of(result.output), tokens.of(result.lse)},
                             attend_level(tensors, levels[n], before, merges));
    tokens.replace(result.output, both.output);
    tokens.replace(result.lse, both.lse);
  }
  return merges ? result.output.to(query.scalar_type()) : result.output;
}

}  // namespace heed::detail
