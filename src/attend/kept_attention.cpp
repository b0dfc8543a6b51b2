// SPDX-License-Identifier: BSD-3-Clause
#include "attend/kept_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <optional>

#include "attend/choose_path.h"
#include "attend/paths/second_pass.h"
#include "core/dtypes.h"
#include "core/random_state.h"
#include "cpu/block/block.h"

namespace heed::detail {

namespace {

/// Zeros [B, H, L] in the dtype of the computation.
at::Tensor zeros_of_rows(const Problem& problem) {
  return at::zeros(problem.query.sizes().slice(0, 3),
                   problem.query.options()
                       .dtype(compute_dtype(problem.query.scalar_type()))
                       .requires_grad(false));
}

/// Computes the call, recorded for autograd, with dropout by its seed. Both passes ask for the
/// same gradients, because these decide the path, and the path decides the random numbers.
SecondPass recorded(const KeptCall& call) {
  std::optional<SeededNumbers> numbers;
  if (call.problem.dropout > 0.0) numbers.emplace(call.problem.query.device(), call.seed);
  return second_pass(attend_problem, call.problem, call.gradients);
}

/// Keeps an lse as `largest` and `inverse_sum`, from which `lse_of` returns it.
void keep_lse(const at::Tensor& lse, KeptAttention& kept) {
  const auto none = lse.isinf().logical_and_(lse.lt(0.0));
  kept.largest = lse.masked_fill(none, 0.0).contiguous();
  kept.inverse_sum = none.logical_not().to(lse.scalar_type());
}

}  // namespace

KeptAttention attend_keeping(const KeptCall& call) {
  const auto& problem = call.problem;
  const bool rounds = problem.result_dtype() != compute_dtype(problem.query.scalar_type());
  KeptAttention kept;
  kept.output_rest = at::empty({0}, problem.query.options().requires_grad(false));
  if (block_path::takes(problem)) {
    const auto result = block_forward(problem, call.seed, BlockUse::training);
    kept.output = result.output;
    kept.largest = result.largest;
    kept.inverse_sum = result.inverse_sum;
    if (rounds) kept.output_rest = result.output_rest;
    return kept;
  }
  const auto attended = recorded(call).attended;
  kept.output = attended.output.detach();
  if (rounds) kept.output_rest = at::empty_like(kept.output);
  if (attended.lse.defined()) {
    keep_lse(attended.lse.detach(), kept);
  } else {
    kept.largest = zeros_of_rows(problem);
    kept.inverse_sum = zeros_of_rows(problem);
  }
  return kept;
}

at::Tensor lse_of(const KeptAttention& kept) {
  return block_path::lse_of({{}, kept.largest, kept.inverse_sum, {}, {}});
}

Gradients gradients_of_kept(const KeptCall& call, const KeptAttention& kept,
                            const at::Tensor& of_output, const at::Tensor& of_lse) {
  if (!block_path::takes(call.problem)) {
    return differentiate(recorded(call), call.gradients, {of_output, of_lse});
  }
  const bool rounds = kept.output_rest.dim() == 4;
  const BlockOutput result{
      kept.output, kept.largest, kept.inverse_sum, {}, rounds ? kept.output_rest : at::Tensor()};
  return block_path::gradients(call.problem, call.seed, result, call.gradients,
                               of_output.defined() ? of_output : at::zeros_like(kept.output),
                               of_lse);
}

}  // namespace heed::detail
