#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <heed/attend.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <optional>

#include "attend/paths/second_pass.h"
#include "core/attend_checks.h"
#include "core/checks.h"
#include "core/random_state.h"
#include "ops/attend_call.h"

/// The operator attend_varlen, and the operators of its two passes. The backward pass computes the
/// call again.

namespace heed::detail {

namespace {

constexpr auto kAttendVarlen = "attend_varlen";
constexpr size_t kInputs = 4;  // query, key, value and sinks may require grad

std::string varlen_arguments() {
  return fmt::format(
      "Tensor query, Tensor key, Tensor value, Tensor query_offsets, Tensor key_offsets, *, "
      "SymInt? longest_query=None, SymInt? longest_key=None, {}",
      kSharedOptions);
}

struct VarlenCall {
  at::Tensor query, key, value, query_offsets, key_offsets;
  std::optional<c10::SymInt> longest_query, longest_key;
  AttendOptions options;
};

VarlenCall read_varlen(Arguments& arguments) {
  VarlenCall call;
  for (auto* tensor :
       {&call.query, &call.key, &call.value, &call.query_offsets, &call.key_offsets}) {
    *tensor = arguments.next<at::Tensor>();
  }
  call.longest_query = arguments.next<std::optional<c10::SymInt>>();
  call.longest_key = arguments.next<std::optional<c10::SymInt>>();
  HEED_CHECK(call.longest_query.has_value() == call.longest_key.has_value(),
             "{}: longest_query and longest_key must be given together", kAttendVarlen);
  read_shared_options(arguments, call.options);
  return call;
}

at::Tensor attend(const VarlenCall& call) {
  const auto& [query, key, value, query_offsets, key_offsets, longest_query, longest_key, options] =
      call;
  if (!longest_query || !longest_key) {
    return heed::attend_varlen(query, key, value, query_offsets, key_offsets, options);
  }
  return heed::attend_varlen(query, key, value, query_offsets, key_offsets,
                             longest_query->guard_int(__FILE__, __LINE__),
                             longest_key->guard_int(__FILE__, __LINE__), options);
}

Results varlen_own(Arguments& arguments) { return {attend(read_varlen(arguments)).contiguous()}; }

Results varlen_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  return varlen_own(arguments);
}

/// The output of a call with meta tensors. Offsets are checked only when the call runs, because
/// meta tensors hold no numbers.
at::Tensor empty_output(const VarlenCall& call) {
  const auto& [query, key, value, query_offsets, key_offsets, longest_query, longest_key, options] =
      call;
  if (has_symbolic_sizes({query, key, value, query_offsets, key_offsets})) {
    check_rank(kAttendVarlen, "query", query, 3);
    check_rank(kAttendVarlen, "value", value, 3);
  } else {
    check_tensors(kAttendVarlen, query, key, value, /*rank=*/3);
    check_head_tensors(kAttendVarlen, query, options);
  }
  check_score_options(kAttendVarlen, options);
  check_precision(kAttendVarlen, query.scalar_type(), options);
  return at::empty_symint({query.sym_size(0), query.sym_size(1), value.sym_size(2)},
                          query.options());
}

Results varlen_on_meta(Arguments& arguments) { return {empty_output(read_varlen(arguments))}; }

// _attend_varlen_forward(<arguments of attend_varlen>, <kVarlenPass>) -> output
// attend_varlen_backward(output_gradient, <arguments of attend_varlen>, <kVarlenPass>) ->
// gradients of query, key, value and sinks

constexpr auto kVarlenPass = "Tensor? seed=None, bool[4] wanted=[True, True, True, True]";

/// A call, and the other arguments of its passes.
struct VarlenPass {
  VarlenCall call;
  uint64_t seed;
  c10::List<bool> wanted;
};

VarlenPass read_varlen_pass(Arguments& arguments) {
  auto call = read_varlen(arguments);
  const auto seed = seed_of(arguments.next<std::optional<at::Tensor>>());
  return {std::move(call), seed, arguments.next<c10::List<bool>>()};
}

/// A call that was computed on stand-ins for its tensors, and recorded in a separate graph.
struct RecordedVarlen {
  variable_list inputs;  // stand-ins of the tensors whose gradients are wanted
  at::Tensor output;
};

RecordedVarlen record(const VarlenPass& pass) {
  std::optional<SeededNumbers> numbers;
  if (pass.call.options.dropout() > 0.0) numbers.emplace(pass.call.query.device(), pass.seed);
  const RecordingScope recording;
  auto call = pass.call;
  auto sinks = call.options.sinks().value_or(at::Tensor());
  RecordedVarlen recorded;
  size_t n = 0;
  for (auto* tensor : {&call.query, &call.key, &call.value, &sinks}) {
    const bool is_wanted = pass.wanted[n++];
    if (tensor->defined()) *tensor = stand_in(*tensor, is_wanted, recorded.inputs);
  }
  if (sinks.defined()) call.options.sinks(sinks);
  recorded.output = attend(call);
  return recorded;
}

Results forward_on_device(Arguments& arguments) {
  return {record(read_varlen_pass(arguments)).output.detach().contiguous()};
}

Results forward_on_meta(Arguments& arguments) { return {empty_output(read_varlen(arguments))}; }

Results backward_of_varlen(Arguments& arguments) {
  const auto of_output = arguments.next<at::Tensor>();
  const auto pass = read_varlen_pass(arguments);
  const auto& call = pass.call;
  const auto recorded = record(pass);
  const auto found =
      torch::autograd::grad({recorded.output}, recorded.inputs, {of_output}, /*retain_graph=*/false,
                            /*create_graph=*/false, /*allow_unused=*/true);
  const at::Tensor originals[] = {call.query, call.key, call.value,
                                  call.options.sinks().value_or(at::Tensor())};
  Results results(kInputs);
  auto next = found.begin();
  for (size_t i = 0; i < kInputs; ++i) {
    if (pass.wanted[i] && originals[i].defined()) results[i] = laid_out_like(*next++, originals[i]);
  }
  return results;
}

Results backward_of_varlen_on_meta(Arguments& arguments) {
  arguments.next<at::Tensor>();
  const auto call = read_varlen(arguments);
  arguments.next<std::optional<at::Tensor>>();
  const auto wanted = arguments.next<c10::List<bool>>();
  const at::Tensor originals[] = {call.query, call.key, call.value,
                                  call.options.sinks().value_or(at::Tensor())};
  Results results(kInputs);
  for (size_t i = 0; i < kInputs; ++i) {
    if (wanted[i] && originals[i].defined()) results[i] = at::empty_like(originals[i]);
  }
  return results;
}

/// A traced call, recorded for autograd with an operator for each pass. `arguments` are those of
/// _attend_varlen_forward.
struct TracedVarlen : public torch::autograd::Function<TracedVarlen> {
  static Variable forward(AutogradContext* context, at::TensorList /*inputs*/,
                          const Stack& arguments) {
    const at::AutoDispatchBelowADInplaceOrView below;
    save_call(context, arguments, {});
    return call_operator("_attend_varlen_forward", arguments)[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_results) {
    auto stack = saved_call(context).arguments;
    Arguments arguments(stack, stack.size());
    const bool with_sinks = read_varlen(arguments).options.sinks().has_value();
    stack.insert(stack.begin(), of_results[0]);
    auto gradients = call_operator("attend_varlen_backward", std::move(stack));
    gradients.resize(with_sinks ? 4 : 3);
    gradients.emplace_back();  // for arguments
    return gradients;
  }
};

CallToRecord described_varlen(Arguments& arguments) {
  const auto call = read_varlen(arguments);
  CallToRecord described{{call.query, call.key, call.value}, call.options.dropout()};
  if (call.options.sinks()) described.inputs.push_back(*call.options.sinks());
  return described;
}

Results varlen_traced(const Stack& arguments, const CallToRecord& to_record) {
  const c10::List<bool> wanted;  // const, but refers to a list that changes
  for (const auto& tensor : to_record.inputs) wanted.push_back(tensor.requires_grad());
  wanted.resize(kInputs, false);
  auto call = arguments;
  call.emplace_back(traced_seed(to_record.dropout));
  call.emplace_back(wanted);
  return {TracedVarlen::apply(at::TensorList(to_record.inputs), call)};
}

void register_varlen(torch::Library& library) {
  library.impl("attend_varlen", boxed<varlen_on_device>());
  library.impl("_attend_varlen_forward", boxed<forward_on_device>());
  library.impl("attend_varlen_backward", boxed<backward_of_varlen>());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(heed, library) {
  constexpr auto kGradients =
      "Tensor query_gradient, Tensor key_gradient, Tensor value_gradient, Tensor sinks_gradient";
  const auto arguments = varlen_arguments();
  const auto passed = fmt::format("{}, {}", arguments, kVarlenPass);
  define(library, fmt::format("attend_varlen({}) -> Tensor", arguments), /*draws=*/true);
  define(library, fmt::format("_attend_varlen_forward({}) -> Tensor", passed), /*draws=*/false);
  define(
      library,
      fmt::format("attend_varlen_backward(Tensor output_gradient, {}) -> ({})", passed, kGradients),
      /*draws=*/false);
}

TORCH_LIBRARY_IMPL(heed, CPU, library) { register_varlen(library); }

TORCH_LIBRARY_IMPL(heed, CUDA, library) { register_varlen(library); }

TORCH_LIBRARY_IMPL(heed, Meta, library) {
  library.impl("attend_varlen", boxed<varlen_on_meta>());
  library.impl("_attend_varlen_forward", boxed<forward_on_meta>());
  library.impl("attend_varlen_backward", boxed<backward_of_varlen_on_meta>());
}

TORCH_LIBRARY_IMPL(heed, Autograd, library) {
  library.impl("attend_varlen", torch::CppFunction::makeFromBoxedFunction<
                                    &call_recorded<varlen_own, described_varlen, varlen_traced>>());
  library.impl("_attend_varlen_forward", torch::autograd::autogradNotImplementedFallback());
  library.impl("attend_varlen_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace heed::detail
