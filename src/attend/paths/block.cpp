// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/block/block.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>

#include "attend/paths/recorded.h"
#include "attend/score_mask.h"
#include "core/random_state.h"

/// The path block: calls on the CPU, if they are not empty and carry no tangents. Only in
/// inference does it return weights (without dropout) and read quantized keys and values. heed's
/// kernel loops over tiles of queries and keys with a running softmax. The forward pass stores each
/// query's maximum and sum, from which the backward pass computes the weights again. Memory
/// besides the result: O(L + S). The path math computes second derivatives, in O(L * S). See
/// "Block" in docs/kernels.md.

namespace heed::detail::block_path {

namespace {

/// The block path, recorded for autograd. Returns {output}, or {output, lse} if the lse is wanted.
struct BlockAttention : public torch::autograd::Function<BlockAttention> {
  static variable_list forward(AutogradContext* context, at::TensorList /*inputs*/,
                               const Problem& problem, uint64_t dropout_key) {
    const auto result = block_forward(problem, dropout_key, BlockUse::training);
    save_problem(context, problem,
                 {result.output, result.largest, result.inverse_sum, result.output_rest});
    context->saved_data["dropout_key"] = static_cast<int64_t>(dropout_key);
    if (problem.wanted == Wanted::output_and_lse) return {result.output, lse_of(result)};
    return {result.output};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = saved_problem(context);
    const auto& problem = saved.problem;
    const auto wanted = wanted_gradients(context, problem);
    const auto& results = saved.results;
    const auto dropout_key = static_cast<uint64_t>(context->saved_data["dropout_key"].toInt());
    const BlockOutput forward{results[0], results[1], results[2], {}, results[3]};
    const auto compute = [&](const variable_list& of_results) {
      return block_path::gradients(problem, dropout_key, forward, wanted, of_results[0],
                                   of_results.size() > 1 ? of_results[1] : at::Tensor());
    };
    const auto computed = recorded_gradients(problem, wanted, gradients, compute);
    return gradients_of_inputs(problem, computed, /*others=*/2);
  }
};

}  // namespace

bool takes(const Problem& problem) {
  const bool weights_possible = !problem.needs_grad() && problem.dropout == 0.0;
  return has_kernels() && problem.query.is_cpu() && !problem.is_empty() && !problem.has_tangent() &&
         (problem.wanted != Wanted::output_and_weights || weights_possible) &&
         (!problem.is_quantized() || (!problem.needs_grad() && problem.has_quantized_rows()));
}

Attended attend(const Problem& problem) {
  if (problem.wanted == Wanted::output_and_weights) {
    const auto result = block_forward(problem, /*dropout_key=*/0, BlockUse::weights);
    return {result.output, result.weights};
  }
  const auto dropout_key =
      problem.part() ? problem.part()->dropout_key : draw_dropout_key(problem.dropout);
  const bool with_lse = problem.wanted == Wanted::output_and_lse;
  if (!problem.needs_grad()) {
    const bool for_backward = problem.part() && problem.part()->for_backward;
    const auto result = block_forward(problem, dropout_key,
                                      for_backward ? BlockUse::training : BlockUse::inference);
    return {result.output, {}, with_lse ? lse_of(result) : at::Tensor()};
  }
  const auto inputs = inputs_of(problem);
  const auto results = BlockAttention::apply(at::TensorList(inputs), problem, dropout_key);
  return {results[0], {}, with_lse ? results[1] : at::Tensor()};
}

Gradients gradients(const Problem& problem, uint64_t dropout_key, const BlockOutput& result,
                    const WantedGradients& wanted, const at::Tensor& of_output,
                    const at::Tensor& of_lse) {
  const auto found =
      block_backward(problem, dropout_key, result, of_output.resolve_neg(), of_lse, wanted);
  return {found.query, found.key,           found.value,       found.bias,
          found.sinks, found.relative_bias, found.alibi_slopes};
}

at::Tensor lse_of(const BlockOutput& result) {
  return (result.largest - result.inverse_sum.log())
      .masked_fill_(result.inverse_sum.eq(0.0), kHiddenScore);
}

Gradients gradients_of_part(const Problem& problem, const Attended& whole,
                            const at::Tensor& output_gradient, const WantedGradients& wanted) {
  TORCH_INTERNAL_ASSERT(problem.part());
  BlockOutput forward;
  forward.output = whole.output;
  // With largest = lse and inverse_sum = 1, the weights are exp(score - lse), as over all parts.
  forward.largest = whole.lse.masked_fill(whole.lse.isinf(), 0.0).contiguous();
  forward.inverse_sum = at::ones_like(forward.largest);
  return gradients(problem, problem.part()->dropout_key, forward, wanted, output_gradient, {});
}

}  // namespace heed::detail::block_path
