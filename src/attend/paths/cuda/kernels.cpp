// SPDX-License-Identifier: BSD-3-Clause
#include "attend/paths/cuda/kernels.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <utility>

#include "attend/score_mask.h"
#include "attend/sequences.h"

namespace heed::detail {

namespace {

constexpr auto kFlashForward = "aten::_flash_attention_forward";
constexpr auto kFlashBackward = "aten::_flash_attention_backward";
constexpr auto kEfficientForward = "aten::_efficient_attention_forward";
constexpr auto kEfficientBackward = "aten::_efficient_attention_backward";

/// Views [B, H, L, D] as kernels take it: [B, L, H, D], but [T, H, D] for packed sequences in
/// flash.
at::Tensor rows(Kernel kernel, const Problem& problem, const at::Tensor& tensor) {
  const auto dense = tensor.transpose(1, 2);
  return problem.packed() && kernel == Kernel::flash ? dense.squeeze(0) : dense;
}

at::Tensor heads(const at::Tensor& rows) {
  return (rows.dim() == 3 ? rows.unsqueeze(0) : rows).transpose(1, 2);
}

c10::IValue or_none(const at::Tensor& tensor) {
  return tensor.defined() ? c10::IValue(tensor) : c10::IValue();
}

/// A window, or None.
c10::IValue or_none(std::optional<int64_t> window) {
  return window ? c10::IValue(*window) : c10::IValue();
}

NamedValues flash_arguments(const Problem& problem) {
  const auto* packed = problem.packed();
  auto longest_query = packed ? packed->longest_query : problem.query_length();
  // If max_q is 1, the kernel assumes that each sequence has exactly one query.
  if (packed && !packed->single_queries) longest_query = std::max<int64_t>(longest_query, 2);
  return {{"query", rows(Kernel::flash, problem, problem.query)},
          {"key", rows(Kernel::flash, problem, problem.key)},
          {"value", rows(Kernel::flash, problem, problem.value)},
          {"max_q", longest_query},
          {"max_k", packed ? packed->longest_key : problem.key_length()},
          {"dropout_p", problem.dropout},
          {"is_causal", problem.causal},
          {"scale", problem.scale},
          {"window_size_left", or_none(problem.left_window)},
          {"window_size_right", or_none(problem.right_window)}};
}

NamedValues flash_forward_arguments(const Problem& problem) {
  auto arguments = flash_arguments(problem);
  const auto* packed = problem.packed();
  arguments.emplace_back("cum_seq_q", packed ? c10::IValue(packed->query_offsets) : c10::IValue());
  arguments.emplace_back("cum_seq_k", packed ? c10::IValue(packed->key_offsets) : c10::IValue());
  arguments.emplace_back("seqused_k", packed ? or_none(packed->key_lengths) : c10::IValue());
  arguments.emplace_back("return_debug_mask", false);
  return arguments;
}

NamedValues flash_backward_arguments(const Problem& problem, const KernelResult& result,
                                     const at::Tensor& output_gradient) {
  auto arguments = flash_arguments(problem);
  const auto* packed = problem.packed();
  arguments.emplace_back("grad_out", rows(Kernel::flash, problem, output_gradient).contiguous());
  arguments.emplace_back("out", rows(Kernel::flash, problem, result.output).contiguous());
  arguments.emplace_back("logsumexp", result.lse.contiguous());
  arguments.emplace_back("cum_seq_q", packed ? packed->query_offsets : at::Tensor());
  arguments.emplace_back("cum_seq_k", packed ? packed->key_offsets : at::Tensor());
  arguments.emplace_back("rng_state", result.rng[0]);
  arguments.emplace_back("unused", result.rng[1]);
  return arguments;
}

/// The kernel's custom_mask_type. 0: none; 1: query i sees keys up to i; 2: up to i + S - L. For
/// S = L, 1 and 2 mean the same, but only 1 is right in every version of LibTorch.
int64_t mask_type(const Problem& problem) {
  if (!problem.causal) return 0;
  const bool same = problem.packed() ? problem.packed()->same_offsets
                                     : problem.query_length() == problem.key_length();
  return same ? 1 : 2;
}

NamedValues efficient_arguments(const Problem& problem) {
  const auto* packed = problem.packed();
  return {
      {"query", rows(Kernel::efficient, problem, problem.query)},
      {"key", rows(Kernel::efficient, problem, problem.key)},
      {"value", rows(Kernel::efficient, problem, problem.value)},
      {"bias", or_none(problem.bias)},
      {"cu_seqlens_q", packed ? c10::IValue(packed->query_offsets) : c10::IValue()},
      {"cu_seqlens_k", packed ? c10::IValue(packed->key_offsets) : c10::IValue()},
      {"dropout_p", problem.dropout},
      {"custom_mask_type", mask_type(problem)},
      {"scale", problem.scale},
      // the number of keys in it, the query's own included
      {"window_size", problem.left_window ? c10::IValue(*problem.left_window + 1) : c10::IValue()}};
}

NamedValues efficient_forward_arguments(const Problem& problem) {
  auto arguments = efficient_arguments(problem);
  const auto* packed = problem.packed();
  arguments.emplace_back("max_seqlen_q",
                         packed ? c10::IValue(packed->longest_query) : c10::IValue());
  arguments.emplace_back("max_seqlen_k", packed ? c10::IValue(packed->longest_key) : c10::IValue());
  arguments.emplace_back("compute_log_sumexp", true);
  arguments.emplace_back("seqlen_k", packed ? or_none(packed->key_lengths) : c10::IValue());
  return arguments;
}

NamedValues efficient_backward_arguments(const Problem& problem, const KernelResult& result,
                                         const at::Tensor& output_gradient, bool of_bias) {
  auto arguments = efficient_arguments(problem);
  const auto* packed = problem.packed();
  arguments.emplace_back("max_seqlen_q", packed ? packed->longest_query : problem.query_length());
  // A longest length may be a bound, but the kernel takes none above the number of keys.
  arguments.emplace_back("max_seqlen_k", packed
                                             ? std::min(packed->longest_key, problem.key_length())
                                             : problem.key_length());
  arguments.emplace_back("grad_out_",
                         rows(Kernel::efficient, problem, output_gradient).contiguous());
  arguments.emplace_back("out", rows(Kernel::efficient, problem, result.output).contiguous());
  arguments.emplace_back("logsumexp", result.lse.contiguous());
  arguments.emplace_back("philox_seed", result.rng[0]);
  arguments.emplace_back("philox_offset", result.rng[1]);
  arguments.emplace_back("bias_requires_grad", of_bias);
  return arguments;
}

/// Sets the gradient of the bias to 0 where causal hides keys, because the kernel does not write
/// to such tiles.
at::Tensor without_unvisited(const Problem& problem, const at::Tensor& bias_gradient) {
  if (!problem.causal) return bias_gradient;
  return bias_gradient.masked_fill(allowed_keys(problem).bitwise_not(), 0.0);
}

/// Sets the gradient of queries without keys to 0, because the kernel does not write it.
at::Tensor without_unwritten(const Problem& problem, const at::Tensor& query_gradient) {
  const auto* packed = problem.packed();
  if (packed == nullptr || packed->has_enough_keys()) return query_gradient;
  const auto keys = packed->key_offsets.diff();
  const auto sequence = sequence_of_tokens(packed->query_offsets, problem.query_length())
                            .clamp_max_(keys.size(0) - 1);
  const auto has_no_key = keys.index_select(0, sequence).eq(0);  // [T]
  return query_gradient.masked_fill(has_no_key.view({1, 1, -1, 1}), 0.0);
}

}  // namespace

NamedValues forward_arguments(Kernel kernel, const Problem& problem) {
  return kernel == Kernel::flash ? flash_forward_arguments(problem)
                                 : efficient_forward_arguments(problem);
}

NamedValues backward_arguments(Kernel kernel, const Problem& problem, const KernelResult& result,
                               const at::Tensor& output_gradient, bool of_bias) {
  return kernel == Kernel::flash
             ? flash_backward_arguments(problem, result, output_gradient)
             : efficient_backward_arguments(problem, result, output_gradient, of_bias);
}

KernelResult kernel_forward(Kernel kernel, const Problem& problem) {
  const auto results = call_operator(kernel == Kernel::flash ? kFlashForward : kEfficientForward,
                                     forward_arguments(kernel, problem));
  return {heads(results[0].toTensor()),
          results[1].toTensor(),
          {results[2].toTensor(), results[3].toTensor()}};
}

std::array<at::Tensor, 4> kernel_backward(Kernel kernel, const Problem& problem,
                                          const KernelResult& result,
                                          const at::Tensor& output_gradient, bool of_bias) {
  const auto found =
      call_operator(kernel == Kernel::flash ? kFlashBackward : kEfficientBackward,
                    backward_arguments(kernel, problem, result, output_gradient, of_bias));
  const auto query_gradient = heads(found[0].toTensor());
  return {kernel == Kernel::efficient ? without_unwritten(problem, query_gradient) : query_gradient,
          heads(found[1].toTensor()), heads(found[2].toTensor()),
          of_bias ? without_unvisited(problem, found[3].toTensor()) : at::Tensor()};
}

at::Tensor lse_of_rows(const Problem& problem, const at::Tensor& lse) {
  if (!problem.packed()) return lse.narrow(2, 0, problem.query_length());
  if (lse.dim() == 2) return lse.unsqueeze(0);  // it is [H, T]
  // The lse is [N, H, longest length or more].
  const auto& offsets = problem.packed()->query_offsets;
  const auto token = at::arange(problem.query_length(), offsets.options());
  const auto sequence =
      sequence_of_tokens(offsets, problem.query_length()).clamp_max_(offsets.size(0) - 2);
  const auto place = (token - offsets.index_select(0, sequence)).clamp_max_(lse.size(2) - 1);
  return lse.transpose(1, 2)
      .flatten(0, 1)
      .index_select(0, sequence * lse.size(2) + place)  // [T, H]
      .transpose(0, 1)
      .unsqueeze(0);
}

}  // namespace heed::detail
