// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/softmax.h>

#include <vector>

#include "attend/paths/paths.h"
#include "attend/paths/second_pass.h"
#include "attend/paths/seen_products.h"
#include "attend/score_mask.h"
#include "attend/sequences.h"
#include "core/dtypes.h"
#include "core/plain.h"

/// The path math: every call on every device. It alone has forward-mode and second derivatives.
/// LibTorch's operators compute softmax(scale * Q K^T + bias) V for all queries at once, in
/// float32, or in float64 for float64. Memory besides the result: O(L * S). See the table of paths
/// in docs/kernels.md, and "Routes" in docs/gpu.md.

namespace heed::detail::math_path {

namespace {

/// `allowed` as [B, G, H / G * L, S], for products that check hidden rows for NaN. Undefined if
/// they need not or cannot: on a GPU the check would wait for the device, and under functorch and
/// tracing there are no numbers to read.
at::Tensor seen_rows(const Problem& problem, const at::Tensor& allowed) {
  if (!allowed.defined() || !problem.query.is_cpu() || !calls_reach_kernels()) return {};
  const auto rows = problem.heads() / problem.groups() * problem.query_length();
  return allowed
      .expand({problem.batch(), problem.heads(), problem.query_length(), problem.key_length()})
      .reshape({problem.batch(), problem.groups(), rows, problem.key_length()});
}

/// scale * QK^T, [B, H, L, S]; the query heads of a group are rows of one product.
at::Tensor scaled_scores(const Problem& problem, at::ScalarType dtype, const at::Tensor& seen) {
  const auto batch = problem.batch();
  const auto rows = problem.heads() / problem.groups() * problem.query_length();
  const auto query = (problem.query.to(dtype) * problem.scale)
                         .reshape({batch, problem.groups(), rows, problem.head_dim()});
  return products_of_seen(query, problem.key.to(dtype), seen)
      .view({batch, problem.heads(), problem.query_length(), problem.key_length()});
}

at::Tensor weighted_values(const Problem& problem, const at::Tensor& weights,
                           const at::Tensor& seen) {
  const auto batch = problem.batch();
  const auto rows = problem.heads() / problem.groups() * problem.query_length();
  return sum_of_seen(weights.reshape({batch, problem.groups(), rows, problem.key_length()}),
                     problem.value.to(weights.scalar_type()), seen)
      .view({batch, problem.heads(), problem.query_length(), problem.value_head_dim()});
}

/// Appends the sinks to the scores: [B, H, L, S] becomes [B, H, L, S + 1].
at::Tensor with_sinks(const Problem& problem, const at::Tensor& scores) {
  const auto sinks = problem.sinks.view({1, -1, 1, 1});
  return at::cat({scores, sinks.expand({scores.size(0), -1, scores.size(2), 1})}, 3);
}

/// The arguments of the softmax, with softcap, bias, hidden keys and sinks: [B, H, L, S], or S + 1
/// with sinks. Recorded for autograd.
at::Tensor recorded_scores(const Problem& problem, at::Tensor scores, const at::Tensor& allowed) {
  if (problem.softcap > 0.0) scores = (scores / problem.softcap).tanh() * problem.softcap;
  const auto added = added_scores(problem, scores.scalar_type());
  if (added.defined()) scores = scores + added;
  if (allowed.defined()) scores = scores.masked_fill(allowed.bitwise_not(), kHiddenScore);
  return problem.sinks.defined() ? with_sinks(problem, scores) : scores;
}

/// Whether a bias, which may be -inf, is added to scores.
bool has_bias(const Problem& problem) {
  return problem.bias.defined() || problem.relative_bias.defined();
}

/// log(sum(exp(scores))); -inf with gradient 0 for a row that is all -inf.
at::Tensor log_sum_exp(const at::Tensor& scores) {
  if (scores.size(-1) == 0) return scores.sum(-1).fill_(kHiddenScore);
  const auto largest = scores.detach().amax(-1, /*keepdim=*/true);
  const auto base = largest.masked_fill(largest.isinf(), 0.0);
  const auto sum = (scores - base).exp().sum(-1);
  const auto none = sum.detach().eq(0.0);
  return (sum.masked_fill(none, 1.0).log() + base.squeeze(-1)).masked_fill(none, kHiddenScore);
}

at::Tensor recorded_weights(const Problem& problem, const at::Tensor& scores,
                            const at::Tensor& allowed) {
  // With sinks too a row can be all -inf, because a sink may be -inf.
  const bool may_lack_keys = has_bias(problem) || allowed.defined() || problem.sinks.defined();
  // _safe_softmax returns 0 with gradient 0 for a row that is all -inf. Meta tensors lack it.
  auto weights =
      may_lack_keys && !scores.is_meta() ? at::_safe_softmax(scores, -1) : at::softmax(scores, -1);
  if (problem.sinks.defined()) weights = weights.narrow(3, 0, problem.key_length());
  return problem.dropout > 0.0 ? at::dropout(weights, problem.dropout, /*train=*/true) : weights;
}

/// The weights of a call without gradients and sinks, computed in the memory of the scores.
at::Tensor inplace_weights(const Problem& problem, at::Tensor scores, const at::Tensor& allowed) {
  if (problem.softcap > 0.0) scores.div_(problem.softcap).tanh_().mul_(problem.softcap);
  const auto added = added_scores(problem, scores.scalar_type());
  if (added.defined()) scores.add_(added);
  if (allowed.defined()) scores.masked_fill_(allowed.bitwise_not(), kHiddenScore);
  at::Tensor keyless;
  if (has_bias(problem)) {
    keyless = queries_without_keys(scores);
  } else if (allowed.defined()) {
    keyless = queries_without_keys(allowed);
  }
  at::_softmax_out(scores, scores, -1, /*half_to_float=*/false);
  if (keyless.defined()) scores.masked_fill_(keyless, 0.0);
  if (problem.dropout > 0.0) at::dropout_(scores, problem.dropout, /*train=*/true);
  return scores;
}

}  // namespace

bool takes(const Problem& /*problem*/) { return true; }

Attended attend(const Problem& problem) {
  if (problem.has_lengths()) return attend(with_documents(problem));
  const auto dtype = problem.query.scalar_type();
  const auto score_dtype = compute_dtype(dtype);
  const auto allowed = allowed_keys(problem);
  const auto seen = seen_rows(problem, allowed);
  const auto scores = scaled_scores(problem, score_dtype, seen);
  const bool with_lse = problem.wanted == Wanted::output_and_lse;
  const auto returned = [&](const at::Tensor& weights) {
    return problem.wanted == Wanted::output_and_weights ? weights.to(dtype) : at::Tensor();
  };
  const bool in_place = calls_reach_kernels() && !problem.needs_grad() && !problem.has_tangent() &&
                        !problem.sinks.defined() && !with_lse;
  if (in_place) {
    const auto weights = inplace_weights(problem, scores, allowed);
    return {
        weighted_values(problem, weights, seen).to(problem.result_dtype()), returned(weights), {}};
  }
  const auto complete = recorded_scores(problem, scores, allowed);
  const auto weights = recorded_weights(problem, complete, allowed);
  return {weighted_values(problem, weights, seen).to(problem.result_dtype()), returned(weights),
          with_lse ? log_sum_exp(complete) : at::Tensor()};
}

Gradients gradients(const Problem& problem, const WantedGradients& wanted,
                    const at::Tensor& of_output, const at::Tensor& of_lse) {
  return differentiate(second_pass(attend, problem, wanted), wanted, {of_output, of_lse});
}

Gradients differentiable_gradients(const Problem& problem, const WantedGradients& wanted,
                                   const std::vector<at::Tensor>& of_results) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      problem.dropout == 0.0,
      "attend: dropout has no second derivative: its draws are made for one backward pass");
  auto own = problem;
  SecondPass pass;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    // One tensor may be two inputs, as query and key for example, with a gradient for each. Views
    // tell them apart.
    auto& tensor = own.*kProblemTensors[i];
    tensor = tensor.view_as(tensor);
    pass.inputs.push_back(tensor);
  }
  pass.attended = attend(own);
  return differentiate(pass, wanted, of_results, /*create_graph=*/true);
}

Gradients gradients_of_part(const Problem& problem, const Attended& whole,
                            const at::Tensor& output_gradient, const WantedGradients& wanted) {
  const auto recorded = second_pass(attend, problem, wanted);
  const auto& part = recorded.attended;
  // The part has the share exp(lse - whole lse) of each query's weights.
  const auto share = (part.lse.detach() - whole.lse.masked_fill(whole.lse.isinf(), 0.0)).exp();
  const auto of_output = share.unsqueeze(-1) * output_gradient;
  const auto of_lse = (of_output * (part.output.detach() - whole.output)).sum(-1);
  return differentiate(recorded, wanted, {of_output, of_lse});
}

}  // namespace heed::detail::math_path
