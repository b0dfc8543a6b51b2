// SPDX-License-Identifier: BSD-3-Clause
#include <cstdint>  // SDPBackend.h of LibTorch 2.6 needs it

#include <ATen/SDPBackend.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "attend/paths/recorded.h"
#include "attend/paths/seen_products.h"
#include "attend/score_mask.h"
#include "attend/sequences.h"
#include "core/dtypes.h"

/// The path fused: one call of at::scaled_dot_product_attention. It returns only the output, and
/// has no softcap and no sinks. On the CPU it takes training only if nothing is hidden. All that
/// hides keys or is added to scores becomes one mask, except causal alone with L = S. On CUDA it
/// takes a call only if LibTorch chooses a kernel other than math for it, and needs no such mask.
/// Memory besides the result: O(L + S), the mask, and padded copies. See the table of paths in
/// docs/kernels.md, and "Routes" in docs/gpu.md.

namespace heed::detail::fused_path {

namespace {

/// Whether the last dimension, and no other, has stride 1. LibTorch's CPU kernel lays its output
/// out by the order of the query's strides, but writes it in rows.
bool lies_in_rows(const at::Tensor& tensor) {
  const auto strides = tensor.strides();
  return strides[3] == 1 && std::count(strides.begin(), strides.end(), 1) == 1;
}

/// Pads a tensor to the head dim that query, key and value must share, and makes it lie in rows.
/// Zeros appended to query and key do not change their products; those appended to value are cut
/// off the output.
at::Tensor pad_head_dim(const at::Tensor& tensor, int64_t head_dim) {
  const auto missing = head_dim - tensor.size(3);
  if (missing > 0) return at::constant_pad_nd(tensor, {0, missing});
  return lies_in_rows(tensor) ? tensor : tensor.contiguous();
}

/// The dtype in which a bias is passed. On the CPU, LibTorch's kernel computes scores of half
/// precision in float32, and takes a float32 bias for them.
at::ScalarType bias_dtype(const at::Tensor& query) {
  const auto dtype = query.scalar_type();
  return query.is_cpu() && dtype != at::kDouble ? at::kFloat : dtype;
}

/// Whether something besides mask, bias and causal hides keys or is added to scores.
bool has_more_than_scores(const Problem& problem) {
  return problem.alibi_slopes.defined() || problem.relative_bias.defined() ||
         problem.has_window() || problem.documents.defined() || problem.has_lengths();
}

/// Whether the call can be passed to LibTorch as causal, without a mask. LibTorch multiplies the
/// hidden scores, -inf, by the scale, which gives NaN unless the scale is above 0 in float32 too.
bool passes_as_causal(const Problem& problem) {
  const bool is_aligned = problem.top_left || problem.query_length() == problem.key_length();
  return problem.causal && is_aligned && !problem.has_scores() && !has_more_than_scores(problem) &&
         problem.scale >= std::numeric_limits<float>::min();
}

/// A call of at::scaled_dot_product_attention.
struct SdpaCall {
  at::Tensor query, key, value;
  std::optional<at::Tensor> mask;  // bool or floating
  double dropout;
  bool causal;
  double scale;

  bool grouped() const { return query.size(1) != key.size(1); }
  at::Tensor call_sdpa() const {
    return at::scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale,
                                            grouped());
  }
  /// The kernel that LibTorch would use. LibTorch throws if the program has switched off all that
  /// could take the call.
  at::SDPBackend choice() const {
    try {
      return static_cast<at::SDPBackend>(
          at::_fused_sdp_choice(query, key, value, mask, dropout, causal, scale, grouped()));
    } catch (const c10::Error&) {
      return at::SDPBackend::error;
    }
  }
};

/// Whether the H / G query heads of a group can become rows of one head. Keys and values are then
/// read once for a group, and the result is a view. The mask must be the same for all queries.
bool can_fold_heads(const Problem& problem, const at::Tensor& mask, bool causal) {
  if (problem.heads() == problem.groups() || causal) return false;
  // Kernels for half precision on CUDA read keys once for a group. They share the keys of a single
  // query among many multiprocessors, but not those of several rows.
  const bool shares_keys = problem.query.is_cuda() && problem.query.element_size() == 2;
  if (shares_keys && !mask.defined()) return false;
  // Causal and window without a mask make a mask [L, S], which differs between queries.
  if (mask.defined() && (mask.dim() != 4 || mask.size(1) != 1 || mask.size(2) != 1)) return false;
  // The axes H / G and L of [B, G, H / G, L, D] must merge without a copy.
  return problem.query_length() == 1 ||
         problem.query.stride(1) == problem.query_length() * problem.query.stride(2);
}

/// Makes the call of at::scaled_dot_product_attention with this mask, which may be undefined.
SdpaCall call_of(const Problem& problem, const at::Tensor& mask) {
  const auto widest = std::max(problem.head_dim(), problem.value_head_dim());
  const auto operand = [&](const at::Tensor& tensor) {
    return pad_head_dim(tensor, tensor.is_cuda() ? tensor.size(3) : widest);
  };
  SdpaCall call{operand(problem.query), operand(problem.key),      operand(problem.value), {},
                problem.dropout,        passes_as_causal(problem), problem.scale};
  if (mask.defined()) call.mask = mask;
  if (can_fold_heads(problem, mask, call.causal)) {
    const auto rows = problem.heads() / problem.groups() * problem.query_length();
    call.query = call.query.reshape({problem.batch(), problem.groups(), rows, call.query.size(3)});
  }
  return call;
}

/// Whether LibTorch's kernels for CUDA compute the call without an L x S mask made here and
/// without padded copies, and at::scaled_dot_product_attention may choose among several of them. A
/// bias must not require grad: LibTorch would compute its gradient from an lse that it does not
/// keep.
bool needs_no_copies(const Problem& problem) {
  if (problem.has_scores() && problem.query.scalar_type() == at::kFloat) return false;
  const bool good_bias =
      !problem.bias.defined() || (problem.bias.scalar_type() == problem.query.scalar_type() &&
                                  !(problem.needs_grad() && problem.bias.requires_grad()));
  return !has_more_than_scores(problem) && problem.mask_batch == MaskBatch::each &&
         !problem.block_mask && good_bias && (!problem.causal || passes_as_causal(problem));
}

at::Tensor call_sdpa(const Problem& given) {
  const auto problem = with_documents(given);
  auto mask =
      passes_as_causal(problem) ? at::Tensor() : score_mask(problem, bias_dtype(problem.query));
  at::Tensor keyless;
  if (mask.defined() && !problem.query.is_cpu()) {
    // Only the CPU kernel has output 0 and finite gradients for a query without keys. On other
    // devices such a query is given all keys, and its output is set to 0.
    keyless = queries_without_keys(mask);
    mask =
        mask.scalar_type() == at::kBool ? mask.bitwise_or(keyless) : mask.masked_fill(keyless, 0.0);
  }
  auto output = call_of(problem, mask)
                    .call_sdpa()
                    .reshape({problem.batch(), problem.heads(), problem.query_length(), -1});
  if (problem.value_head_dim() < output.size(3)) {
    output = output.narrow(3, 0, problem.value_head_dim());
  }
  return keyless.defined() ? output.masked_fill(keyless, 0.0) : output;
}

/// Whether LibTorch's kernel for the CPU computes the call rightly if it has NaN or infinity. The
/// kernel lets hidden ones into the output. It loses NaN if there are fewer keys than elements in
/// the widest vector, and infinite scores in half precision.
bool is_right_on_cpu(const Problem& problem) {
  constexpr int64_t kEnoughKeys = 16;
  const auto dtype = problem.query.scalar_type();
  const bool shows = problem.key_length() >= kEnoughKeys && compute_dtype(dtype) == dtype;
  if (shows && !problem.may_hide()) return true;
  return are_finite(problem.query) && are_finite(problem.key) &&
         (!problem.may_hide() || are_finite(problem.value));
}

/// A call that LibTorch has recorded, kept for the backward pass.
struct RecordedCall : torch::CustomClassHolder {
  std::vector<at::Tensor> inputs;
  at::Tensor output;
};

/// A call on CUDA, recorded for autograd. LibTorch's kernels have no second derivatives, so the
/// path math computes these.
struct FusedAttention : public torch::autograd::Function<FusedAttention> {
  static variable_list forward(AutogradContext* context, at::TensorList /*inputs*/,
                               const Problem& problem) {
    const at::AutoGradMode recording(true);
    auto own = problem;
    auto recorded = c10::make_intrusive<RecordedCall>();
    for (size_t i = 0; i < kGradientTensors; ++i) {
      auto& tensor = own.*kProblemTensors[i];
      if (!tensor.defined()) continue;
      tensor = tensor.detach().set_requires_grad(tensor.requires_grad());
      if (tensor.requires_grad()) recorded->inputs.push_back(tensor);
    }
    recorded->output = call_sdpa(own);
    save_problem(context, problem, {}, recorded);
    return {recorded->output.detach()};
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_results) {
    const auto saved = saved_problem(context);
    const auto wanted = wanted_gradients(context, saved.problem);
    if (at::GradMode::is_enabled()) {
      return gradients_of_inputs(
          saved.problem, math_path::differentiable_gradients(saved.problem, wanted, of_results),
          /*others=*/1);
    }
    const auto& recorded = static_cast<const RecordedCall&>(*saved.rest);
    const auto found = torch::autograd::grad({recorded.output}, recorded.inputs, of_results,
                                             torch::autograd::get_current_graph_task_keep_graph());
    Gradients gradients;
    auto next = found.begin();
    for (size_t i = 0; i < kGradientTensors; ++i) {
      const auto& tensor = saved.problem.*kProblemTensors[i];
      if (tensor.defined() && tensor.requires_grad()) gradients[i] = *next++;
    }
    return gradients_of_inputs(saved.problem, gradients, /*others=*/1);
  }
};

}  // namespace

bool takes(const Problem& problem) {
  // In LibTorch's backward pass, NaN in a gradient would reach hidden keys.
  const bool hides_in_training =
      problem.query.is_cpu() && problem.may_hide() && problem.needs_grad();
  const bool takes = !hides_in_training && !problem.query.is_meta() && !problem.is_empty() &&
                     !problem.has_tangent() && problem.wanted == Wanted::output &&
                     problem.rounds() && problem.softcap == 0.0 && !problem.sinks.defined();
  if (!takes || !problem.query.is_cuda()) return takes;
  // The choice of a kernel depends on the shape and dtype of the mask alone.
  const auto& scores = problem.bias.defined() ? problem.bias : problem.mask;
  if (!needs_no_copies(problem)) return false;
  const auto choice = call_of(problem, scores).choice();
  if (problem.head_dim() != problem.value_head_dim())
    return choice == at::SDPBackend::cudnn_attention;
  return choice != at::SDPBackend::math && choice != at::SDPBackend::error;
}

Attended attend(const Problem& problem) {
  if (problem.query.is_cpu() && !is_right_on_cpu(problem)) {
    return block_path::takes(problem) ? block_path::attend(problem) : math_path::attend(problem);
  }
  if (!problem.query.is_cuda() || !problem.needs_grad()) return {call_sdpa(problem)};
  const auto inputs = inputs_of(problem);
  return {FusedAttention::apply(at::TensorList(inputs), problem)[0]};
}

}  // namespace heed::detail::fused_path
