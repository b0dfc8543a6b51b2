// SPDX-License-Identifier: BSD-3-Clause
#include "support/dense.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <vector>

namespace heed::test {

namespace {

at::Tensor on_cpu(const std::optional<at::Tensor>& tensor) {
  return tensor ? tensor->cpu() : at::Tensor();
}

/// [n] or [B, n] as [B, n].
at::Tensor of_batch(const at::Tensor& rows, int64_t batch) {
  return (rows.dim() == 1 ? rows.unsqueeze(0) : rows).expand({batch, -1});
}

/// The lengths of a call, int64 [B].
struct Lengths {
  Lengths(const Inputs& inputs, const AttendOptions& options)
      : batch(inputs.query.size(0)),
        L(inputs.query.size(2)),
        S(inputs.key.size(2)),
        queries(options.query_lengths() ? options.query_lengths()->cpu()
                                        : at::full({batch}, L, at::kLong)),
        keys(options.key_lengths() ? options.key_lengths()->cpu()
                                   : at::full({batch}, S, at::kLong)) {}

  /// int64 [B, L].
  at::Tensor positions(const AttendOptions& options) const {
    const auto places = at::arange(L).unsqueeze(0).expand({batch, L});
    return options.top_left() ? places : places + (keys - queries).unsqueeze(1);
  }

  int64_t batch, L, S;
  at::Tensor queries, keys;
};

/// Element p of each row of `of_keys` [B, S], or `otherwise` where p is no key: [B, L].
at::Tensor at_positions(const at::Tensor& of_keys, const at::Tensor& positions, int64_t otherwise) {
  const auto S = of_keys.size(1);
  if (S == 0) return at::full(positions.sizes(), otherwise, of_keys.options());
  const auto exists = positions.ge(0).logical_and(positions.lt(S));
  const auto found = of_keys.gather(1, positions.clamp(0, S - 1));
  return at::where(exists, found, at::full({}, otherwise, of_keys.options()));
}

/// [n, ..] as [B, ..], for n that divides B.
at::Tensor of_batches(const at::Tensor& scores, int64_t batch, MaskBatch order) {
  const auto n = std::max<int64_t>(scores.size(0), 1);
  std::vector<at::Tensor> rows;
  for (int64_t b = 0; b < batch; ++b) {
    rows.push_back(scores[order == MaskBatch::repeated ? b / (batch / n) : b % n]);
  }
  return rows.empty() ? scores.narrow(0, 0, 0) : at::stack(rows);
}

/// Whether options ask for what the reference does not know.
bool needs_dense(const AttendOptions& options) {
  const auto& slopes = options.alibi_slopes();
  return options.left_window() || options.right_window() || options.top_left() ||
         options.query_lengths() || options.key_lengths() || options.global_tokens() ||
         options.relative_bias() || options.mask_batch() != MaskBatch::each ||
         (slopes && (slopes->dim() == 2 || slopes->requires_grad()));
}

/// The options' tensors that are added to scores, in float64 on the CPU; undefined where there is
/// none.
struct AddedScores {
  at::Tensor bias, relative_bias, alibi_slopes;
};

AddedScores added_scores_of(const AttendOptions& options) {
  const auto leaf = [](const std::optional<at::Tensor>& tensor) {
    if (!tensor) return at::Tensor();
    const auto copy = tensor->detach().to(at::kDouble, false, /*copy=*/true).cpu();
    return at::GradMode::is_enabled() ? copy.requires_grad_() : copy;
  };
  return {leaf(options.bias()), leaf(options.relative_bias()), leaf(options.alibi_slopes())};
}

/// Float64 [B, H, L, S]: what they add to the scores of `inputs`, recorded for autograd; undefined
/// if all are.
at::Tensor dense_bias(const Inputs& inputs, const AttendOptions& options,
                      const AddedScores& added) {
  const Lengths lengths(inputs, options);
  const auto batch = lengths.batch, heads = inputs.query.size(1);
  const auto positions = lengths.positions(options);
  at::Tensor sum;
  const auto add = [&](const at::Tensor& scores) {
    const auto all = scores.expand({batch, heads, lengths.L, lengths.S});
    sum = sum.defined() ? sum + all : all;
  };
  if (added.bias.defined()) {
    add(of_batches(four_dimensional(added.bias), batch, options.mask_batch()));
  }
  if (added.alibi_slopes.defined()) {
    const auto apart =
        (positions.unsqueeze(2) - at::arange(lengths.S)).abs().unsqueeze(1).to(at::kDouble);
    const auto slopes = of_batch(added.alibi_slopes, batch);
    add(slopes.unsqueeze(2).unsqueeze(3) * -apart);
  }
  if (added.relative_bias.defined()) {
    const auto reach = added.relative_bias.size(1) / 2;
    const auto given = on_cpu(options.relative_positions());
    const auto r = given.defined() ? of_batch(given, batch)
                                   : at::arange(lengths.S).unsqueeze(0).expand({batch, -1});
    const auto of_queries = given.defined() ? at_positions(r, positions, 0) : positions;
    const auto element =
        (r.unsqueeze(1) - of_queries.unsqueeze(2)).clamp(-reach, reach) + reach;  // [B, L, S]
    add(added.relative_bias.index({at::arange(heads).view({1, -1, 1, 1}), element.unsqueeze(1)}));
  }
  return sum;
}

}  // namespace

at::Tensor dense_mask(const Inputs& inputs, const AttendOptions& options) {
  const Lengths lengths(inputs, options);
  const auto batch = lengths.batch;
  const auto p = lengths.positions(options).unsqueeze(2);  // [B, L, 1]
  const auto j = at::arange(lengths.S).view({1, 1, -1});
  auto near = at::ones({batch, lengths.L, lengths.S}, at::kBool);
  auto left = options.left_window(), right = options.right_window();
  if (options.window()) left = right = *options.window() - 1;
  if (left && *left < lengths.L + lengths.S) near = near.logical_and(j.ge(p - *left));
  if (right && *right < lengths.L + lengths.S) near = near.logical_and(j.le(p + *right));
  if (options.global_tokens()) {
    const auto global = of_batch(options.global_tokens()->cpu(), batch);
    near = near.logical_or(global.unsqueeze(1))
               .logical_or(at_positions(global, p.squeeze(2), 0).unsqueeze(2));
  }
  auto seen = near;
  if (options.causal()) seen = seen.logical_and(j.le(p));
  const auto exists = [](const at::Tensor& of_lengths, int64_t most) {
    return at::arange(most).unsqueeze(0).lt(of_lengths.unsqueeze(1));
  };
  seen = seen.logical_and(exists(lengths.queries, lengths.L).unsqueeze(2))
             .logical_and(exists(lengths.keys, lengths.S).unsqueeze(1))
             .unsqueeze(1);
  if (options.mask()) {
    const auto mask = four_dimensional(options.mask()->cpu()).ne(0);
    seen = seen.logical_and(of_batches(mask, batch, options.mask_batch()));
  }
  if (options.block_mask()) seen = seen.logical_and(options.block_mask()->mask());
  if (const auto& documents = options.documents()) {
    seen = seen.logical_and(
        document_pairs(documents->cpu(), options.key_documents().value_or(*documents).cpu()));
  }
  return seen.expand({batch, inputs.query.size(1), lengths.L, lengths.S});
}

ReferenceResult dense_reference(const Inputs& inputs, const AttendOptions& options,
                                const ReferenceExtras& extras) {
  const bool is_dense = needs_dense(options);
  auto known = options;
  if (is_dense) {  // the mask and bias below have these
    for (auto* tensor :
         {&known.mask(), &known.bias(), &known.documents(), &known.key_documents()}) {
      tensor->reset();
    }
    known.block_mask().reset();
  }
  auto input = reference_input(inputs, known, extras.output_gradient);
  input.lse_gradient = extras.lse_gradient;
  input.kept = extras.kept;
  if (!is_dense) return reference_attention(input);
  const auto added = added_scores_of(options);
  const auto bias = dense_bias(inputs, options, added);
  input.mask = dense_mask(inputs, options);
  input.bias = bias.defined() ? bias.detach() : bias;
  input.alibi_slopes = at::Tensor();
  input.causal = false;
  input.window.reset();
  auto result = reference_attention(input);
  const auto gradient_of = [&](const at::Tensor& leaf) {
    if (!leaf.defined() || !bias.requires_grad() || !extras.output_gradient.defined()) {
      return at::Tensor();
    }
    return torch::autograd::grad({bias}, {leaf}, {result.bias_grad}, /*retain_graph=*/true)[0];
  };
  const auto bias_grad = gradient_of(added.bias);
  result.relative_bias_grad = gradient_of(added.relative_bias);
  result.alibi_slopes_grad = gradient_of(added.alibi_slopes);
  result.bias_grad = bias_grad;
  return result;
}

}  // namespace heed::test
