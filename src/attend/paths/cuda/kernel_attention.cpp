// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/logaddexp.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <limits>

#include "attend/paths/cuda/kernel_form.h"
#include "attend/paths/cuda/operators.h"
#include "attend/paths/cuda/trust.h"
#include "attend/paths/recorded.h"
#include "attend/score_mask.h"
#include "attend/sequences.h"
#include "core/lack_of_memory.h"

/// The paths flash and efficient: LibTorch's two kernels of attention for CUDA, called directly
/// for what at::scaled_dot_product_attention does not pass on to them. KernelForm makes the shapes
/// that a kernel takes; sinks are added to its results here. If a kernel throws, or differs in the
/// mode "verify", the path query_blocks computes the call. Memory besides the result: O(L + S),
/// and copies of mask or bias. See "Routes" and "Trust, but verify" in docs/gpu.md.

namespace heed::detail {

namespace {

/// Views the sinks so that they broadcast to the lse: [1, H, 1] for [B, H, L], [H, 1] for [H, T].
at::Tensor sinks_like(const Problem& problem, const at::Tensor& lse) {
  return lse.dim() == 2 ? problem.sinks.view({-1, 1}) : problem.sinks.view({1, -1, 1});
}

/// Adds sinks to a kernel's result. A sink is one more key with value 0, so it changes the lse and
/// scales the output. From the new lse and output, the backward kernel computes the right
/// gradients.
KernelResult with_sinks(const Problem& problem, const KernelResult& result) {
  const auto own = lse_of_rows(problem, result.lse);
  const auto share = (own - problem.sinks.view({1, -1, 1})).sigmoid();
  return {(result.output * share.unsqueeze(3)).to(result.output.scalar_type()),
          at::logaddexp(result.lse, sinks_like(problem, result.lse)), result.rng};
}

KernelResult forward_result(Kernel kernel, const Problem& problem) {
  const auto result = kernel_forward(kernel, problem);
  return problem.sinks.defined() ? with_sinks(problem, result) : result;
}

/// The gradient of the sinks, [H]: minus the sum of a sink's weight times the dot product of the
/// output and its gradient.
at::Tensor gradient_of_sinks(const Problem& problem, const KernelResult& result,
                             const at::Tensor& output_gradient) {
  const auto of_share = (output_gradient.to(at::kFloat) * result.output).sum(3);  // [B, H, L]
  const auto share = (problem.sinks.view({1, -1, 1}) - lse_of_rows(problem, result.lse)).exp();
  return -(share * of_share).sum(at::IntArrayRef({0, 2}));
}

/// The lse [B, H, L] that the caller gets: -inf for a query without keys and without a sink. Only
/// flash takes calls with such queries if the lse is wanted, and it writes inf for them.
at::Tensor wanted_lse(Kernel kernel, const Problem& problem, const at::Tensor& lse) {
  const auto rows = lse_of_rows(problem, lse);
  if (kernel == Kernel::efficient) return rows.contiguous();
  const auto none = rows.eq(std::numeric_limits<float>::infinity());
  return problem.sinks.defined() ? at::where(none, problem.sinks.view({1, -1, 1}), rows)
                                 : rows.masked_fill(none, kHiddenScore);
}

/// Runs `call`. If the kernel throws, warns and returns false, unless it ran out of memory.
template <typename Call>
bool accepts(Kernel kernel, const Problem& problem, const Call& call) {
  try {
    call();
    return true;
  } catch (const c10::Error& error) {
    if (is_lack_of_memory(error)) throw;
    warn_of_refusal(kernel, problem, error);
    return false;
  }
}

/// A kernel's two passes, recorded for autograd, for a problem in the kernel's form. Returns
/// {output}, or {output, lse} if the lse is wanted.
struct KernelAttention : public torch::autograd::Function<KernelAttention> {
  static variable_list forward(AutogradContext* context, at::TensorList /*inputs*/,
                               const Problem& problem, Kernel kernel, Help help) {
    context->set_materialize_grads(false);
    const auto result = forward_result(kernel, problem);
    save_problem(context, problem, {result.output, result.lse, result.rng[0], result.rng[1]});
    context->saved_data["kernel"] = static_cast<int64_t>(kernel);
    context->saved_data["help"] = help == Help::operators;
    if (problem.wanted != Wanted::output_and_lse) return {result.output};
    return {result.output, wanted_lse(kernel, problem, result.lse)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_results) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto saved = saved_problem(context);
    const auto wanted = wanted_gradients(context, saved.problem);
    const auto kernel = static_cast<Kernel>(context->saved_data["kernel"].toInt());
    const auto& results = saved.results;
    const Call call{kernel,
                    saved.problem,
                    {results[0], results[1], {results[2], results[3]}},
                    wanted,
                    context->saved_data["help"].toBool()};
    const auto computed =
        recorded_gradients(saved.problem, wanted, of_results,
                           [&](const variable_list& slices) { return gradients(call, slices); });
    return gradients_of_inputs(saved.problem, computed, /*others=*/3);
  }

 private:
  struct Call {
    Kernel kernel;
    const Problem& problem;
    KernelResult result;
    WantedGradients wanted;
    bool helped;
  };

  static Gradients gradients(const Call& call, const variable_list& of_results) {
    Gradients found;
    if (of_results[0].defined()) found = helped_gradients(call, of_results[0]);
    if (of_results.size() > 1 && of_results[1].defined()) {
      // The kernels differentiate only the output, so operators differentiate the lse.
      auto own = with_documents(call.problem);
      own.dropout = 0.0;
      const auto of_lse = query_blocks_path::gradients(own, call.wanted, {}, of_results[1]);
      for (size_t i = 0; i < found.size(); ++i) {
        if (!of_lse[i].defined()) continue;
        found[i] = found[i].defined() ? found[i] + of_lse[i] : of_lse[i];
      }
    }
    return found;
  }

  static Gradients kernel_gradients(const Call& call, const at::Tensor& of_output) {
    const auto [query, key, value, bias] =
        kernel_backward(call.kernel, call.problem, call.result, of_output, call.wanted[3]);
    Gradients found = {query, key, value, bias, {}};
    if (call.wanted[4]) found[4] = gradient_of_sinks(call.problem, call.result, of_output);
    return found;
  }

  static Gradients helped_gradients(const Call& call, const at::Tensor& of_output) {
    // With dropout, operators cannot help, because they would drop other weights.
    if (!call.helped || call.problem.dropout > 0.0) return kernel_gradients(call, of_output);
    const auto of_operators = [&] {
      return query_blocks_path::gradients(with_documents(call.problem), call.wanted, of_output, {});
    };
    const at::AutoGradMode recorded(true);  // for the warning, which describes the recorded call
    Gradients found;
    const bool accepted = accepts(call.kernel, call.problem, [&] {
      const at::NoGradGuard no_grad;
      found = kernel_gradients(call, of_output);
    });
    if (!accepted) return of_operators();
    if (cuda_routes() == CudaRoutes::verify) replace_wrong(call, found, of_operators());
    return found;
  }

  static void replace_wrong(const Call& call, Gradients& found, const Gradients& expected) {
    constexpr const char* kNames[] = {
        "the gradient of query",       "the gradient of key",   "the gradient of value",
        "the gradient of bias",        "the gradient of sinks", "the gradient of relative_bias",
        "the gradient of alibi_slopes"};
    for (size_t i = 0; i < found.size(); ++i) {
      if (call.wanted[i] && !verify(call.kernel, call.problem, kNames[i], found[i], expected[i])) {
        found[i] = expected[i];
      }
    }
  }
};

Attended attend_in_form(Kernel kernel, const Problem& problem, Help help) {
  if (!problem.needs_grad()) {
    const auto result = forward_result(kernel, problem);
    if (problem.wanted != Wanted::output_and_lse) return {result.output};
    return {result.output, {}, wanted_lse(kernel, problem, result.lse)};
  }
  const auto inputs = inputs_of(problem);
  const auto results = KernelAttention::apply(at::TensorList(inputs), problem, kernel, help);
  return {results[0], {}, results.size() > 1 ? results[1] : at::Tensor()};
}

Attended checked(Kernel kernel, const Problem& problem) {
  Attended attended;
  const bool accepted =
      accepts(kernel, problem, [&] { attended = attend_by(kernel, problem, Help::operators); });
  if (!accepted) return query_blocks_path::attend(problem);
  if (cuda_routes() != CudaRoutes::verify || problem.dropout > 0.0) return attended;
  const auto expected = query_blocks_path::attend(problem);
  const bool good =
      verify(kernel, problem, "the output", attended.output, expected.output) &&
      (!attended.lse.defined() || verify(kernel, problem, "the lse", attended.lse, expected.lse));
  return good ? attended : expected;
}

/// False for problems that neither kernel computes, such as those with ALiBi or a softcap.
bool may_use_kernels(const Problem& problem) {
  const bool adds = problem.alibi_slopes.defined() || problem.relative_bias.defined();
  return query_blocks_path::takes(problem) && problem.query.is_cuda() && !adds &&
         !problem.global_keys.defined() && !problem.top_left &&
         problem.mask_batch == MaskBatch::each && problem.softcap == 0.0 && problem.rounds() &&
         !(problem.padded() && (problem.needs_grad() || problem.documents.defined()));
}

constexpr auto kFlash = "aten::_flash_attention_forward";
constexpr auto kEfficient = "aten::_efficient_attention_forward";

bool is_half(const Problem& problem) {
  const auto dtype = problem.query.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

/// Whether documents can be computed as packed sequences. There may be as many as tokens. Before
/// FlashAttention 2.7 the lse had room for the longest length in each, which would be too much
/// memory; later versions return "rng_state".
bool can_sort_documents(const Problem& problem) {
  return !problem.has_window() && problem.query_length() == problem.key_length() &&
         problem.documents.is_same(problem.key_documents) && returns(kFlash, "rng_state");
}

/// Whether the host knows that no sequence has fewer keys than queries.
bool has_enough_keys(const Problem& problem) {
  if (const auto* padded = problem.padded()) return padded->enough_keys;
  if (const auto* packed = problem.packed()) return packed->has_enough_keys();
  return problem.query_length() <= problem.key_length();
}

/// Whether the kernel "flash" can count the keys to the right that a window shows. Of a window that
/// is open on that side, or wider than the longest sequence, it shows as many keys as that sequence
/// has. A query before the first key, of a sequence with fewer keys than queries, may see more.
bool counts_keys_to_the_right(const Problem& problem) {
  if (problem.causal || !problem.has_window() || has_enough_keys(problem)) return true;
  const auto* packed = problem.packed();
  const auto longest = packed ? packed->longest_key : problem.key_length();
  return problem.right_window && *problem.right_window < longest;
}

bool may_use_flash(const Problem& problem) {
  constexpr int64_t kLargestHeadDim = 256;
  return may_use_kernels(problem) && is_half(problem) && !problem.has_scores() &&
         problem.head_dim() <= kLargestHeadDim && problem.value_head_dim() <= kLargestHeadDim &&
         // The kernel takes the largest product before it scales, so the scale must be above 0.
         problem.scale >= std::numeric_limits<float>::min() &&
         (!problem.documents.defined() || can_sort_documents(problem)) &&
         counts_keys_to_the_right(problem) && at::globalContext().userEnabledFlashSDP() &&
         has_cuda_kernel(kFlash);
}

/// Whether the kernel "efficient" can count the keys that causal and window show. It counts from
/// the start of a sequence, or from its end if there are at least as many keys as queries. In
/// gradients it counts a window from the start only; see KernelForm::add_queries.
bool counts_keys(const Problem& problem) {
  if (!problem.causal) return !problem.has_window();
  if (const auto* padded = problem.padded()) return padded->enough_keys;
  const bool window_gradients = problem.left_window && problem.needs_grad();
  if (const auto* packed = problem.packed()) {
    return packed->same_offsets || (packed->enough_keys && !window_gradients);
  }
  return !window_gradients || !problem.has_scores() ||
         problem.query_length() >= problem.key_length();
}

/// Whether the kernel "efficient" computes packed sequences rightly. Before LibTorch 2.14, dropout
/// draws other numbers in their backward pass. If a query sees no key, the kernel does not write
/// its output for head dims above 128.
bool can_pack(const Problem& problem) {
  constexpr int64_t kWritten = 128;
  const bool has_all_keys = !problem.padded() && problem.packed()->same_offsets;
  const bool narrow = problem.head_dim() <= kWritten && problem.value_head_dim() <= kWritten;
  return problem.dropout == 0.0 && !problem.has_scores() && (narrow || has_all_keys) &&
         (!problem.documents.defined() || can_sort_documents(problem));
}

/// Whether a query may see no key, as far as the host knows.
bool may_lack_keys(const Problem& problem) {
  return problem.has_scores() || (problem.has_lengths() && !has_enough_keys(problem));
}

bool may_use_efficient(const Problem& problem) {
  const auto dtype = problem.query.scalar_type();
  // The kernel takes a bias in the query's dtype. A wider one would be rounded.
  const bool same_type = !problem.bias.defined() || problem.bias.scalar_type() == dtype;
  return may_use_kernels(problem) && (is_half(problem) || dtype == at::kFloat) && same_type &&
         !problem.documents.defined() &&  // the lse would need L numbers per document
         // For a query without keys the kernel writes the lse 0, which a query with keys can have
         // too.
         (!may_lack_keys(problem) || problem.wanted != Wanted::output_and_lse) &&
         counts_keys(problem) && (!problem.has_lengths() || can_pack(problem)) &&
         at::globalContext().userEnabledMemEfficientSDP() && has_cuda_kernel(kEfficient);
}

}  // namespace

Attended attend_by(Kernel kernel, const Problem& problem, Help help) {
  const KernelForm form(kernel, problem);
  return form.original(attend_in_form(kernel, form.problem(), help));
}

namespace flash_path {

bool takes(const Problem& problem) {
  return may_use_flash(problem) && is_trusted(Kernel::flash, problem);
}

Attended attend(const Problem& problem) { return checked(Kernel::flash, problem); }

}  // namespace flash_path

namespace efficient_path {

bool takes(const Problem& problem) {
  return may_use_efficient(problem) && is_trusted(Kernel::efficient, problem);
}

Attended attend(const Problem& problem) { return checked(Kernel::efficient, problem); }

}  // namespace efficient_path

}  // namespace heed::detail
