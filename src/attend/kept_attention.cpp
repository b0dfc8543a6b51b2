#include "attend/kept_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <optional>

#include "attend/choose_path.h"
#include "attend/dropout_key.h"
#include "attend/paths/second_pass.h"
#include "core/dtypes.h"
#include "core/random_state.h"

namespace heed::detail {

namespace {

at::Tensor as_tensor(uint64_t seed) {
  return at::empty({1}, at::kLong).fill_(static_cast<int64_t>(seed));
}

uint64_t seed_of(const KeptAttention& kept) {
  return static_cast<uint64_t>(kept.seed.const_data_ptr<int64_t>()[0]);
}

/// [B, H, L] of zeros in the type computed in.
at::Tensor zeros_of_rows(const Problem& problem) {
  return at::zeros(problem.query.sizes().slice(0, 3),
                   problem.query.options()
                       .dtype(compute_dtype(problem.query.scalar_type()))
                       .requires_grad(false));
}

/// The call with the random numbers of `seed`, where it draws any.
template <typename Run>
auto with_seed(const Problem& problem, uint64_t seed, const Run& run) {
  std::optional<SeededNumbers> numbers;
  if (problem.dropout > 0.0) numbers.emplace(problem.query.device(), seed);
  return run();
}

/// Statistics whose `lse_of` is the lse.
void keep_lse(const at::Tensor& lse, KeptAttention& kept) {
  const auto none = lse.isinf().logical_and_(lse.lt(0.0));
  kept.largest = lse.masked_fill(none, 0.0).contiguous();
  kept.inverse_sum = none.logical_not().to(lse.scalar_type());
}

}  // namespace

KeptAttention attend_keeping(const Problem& problem) {
  const bool rounds = problem.result_dtype() != compute_dtype(problem.query.scalar_type());
  KeptAttention kept;
  kept.output_rest = at::empty({0}, problem.query.options().requires_grad(false));
  if (block_path::takes(problem)) {
    const auto key = draw_dropout_key(problem.dropout);
    const auto result = block_forward(problem, key, BlockUse::training);
    kept.output = result.output;
    kept.largest = result.largest;
    kept.inverse_sum = result.inverse_sum;
    if (rounds) kept.output_rest = result.output_rest;
    kept.seed = as_tensor(key);
    return kept;
  }
  const auto seed = problem.dropout > 0.0 ? draw_seed(problem.query.device()) : 0;
  const auto attended = with_seed(problem, seed, [&] { return run(problem); });
  kept.output = attended.output;
  if (rounds) kept.output_rest = at::empty_like(attended.output);
  if (attended.lse.defined()) {
    keep_lse(attended.lse, kept);
  } else {
    kept.largest = zeros_of_rows(problem);
    kept.inverse_sum = zeros_of_rows(problem);
  }
  kept.seed = as_tensor(seed);
  return kept;
}

at::Tensor lse_of(const KeptAttention& kept) {
  return block_path::lse_of({{}, kept.largest, kept.inverse_sum, {}, {}});
}

Gradients gradients_of_kept(const Problem& problem, const KeptAttention& kept,
                            const WantedGradients& wanted, const at::Tensor& of_output,
                            const at::Tensor& of_lse) {
  if (block_path::takes(problem)) {
    const bool rounds = kept.output_rest.dim() == 4;
    const BlockOutput result{
        kept.output, kept.largest, kept.inverse_sum, {}, rounds ? kept.output_rest : at::Tensor()};
    return block_path::gradients(problem, seed_of(kept), result, wanted,
                                 of_output.defined() ? of_output : at::zeros_like(kept.output),
                                 of_lse);
  }
  return with_seed(problem, seed_of(kept), [&] {
    return differentiate(second_pass(run, problem, wanted), wanted, {of_output, of_lse});
  });
}

}  // namespace heed::detail
