#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <heed/attend.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <optional>

#include "attend/paths/second_pass.h"
#include "core/attend_checks.h"
#include "core/checks.h"
#include "core/random_state.h"
#include "ops/traced.h"

/// The operator attend_varlen. Its second pass computes the call again.

namespace heed::detail {

namespace {

constexpr auto kAttendVarlen = "attend_varlen";
constexpr size_t kInputs = 4;  // that may require grad: query, key, value, sinks

const std::string kVarlenArguments =
    "Tensor query, Tensor key, Tensor value, Tensor query_offsets, Tensor key_offsets, *, "
    "SymInt? longest_query=None, SymInt? longest_key=None, bool causal=False, int? window=None, "
    "float dropout=0.0, float? scale=None, float? softcap=None, Tensor? alibi_slopes=None, "
    "Tensor? sinks=None";

struct VarlenCall {
  at::Tensor query, key, value, query_offsets, key_offsets;
  std::optional<c10::SymInt> longest_query, longest_key;
  AttendOptions options;
};

VarlenCall read_varlen(Arguments& arguments) {
  using Tensor = std::optional<at::Tensor>;
  VarlenCall call;
  for (auto* tensor :
       {&call.query, &call.key, &call.value, &call.query_offsets, &call.key_offsets}) {
    *tensor = arguments.next<at::Tensor>();
  }
  call.longest_query = arguments.next<std::optional<c10::SymInt>>();
  call.longest_key = arguments.next<std::optional<c10::SymInt>>();
  HEED_CHECK(call.longest_query.has_value() == call.longest_key.has_value(),
             "{}: longest_query and longest_key must be given together", kAttendVarlen);
  auto& options = call.options;
  options.causal(arguments.next<bool>());
  options.window(arguments.next<std::optional<int64_t>>());
  options.dropout(arguments.next<double>());
  options.scale(arguments.next<std::optional<double>>());
  options.softcap(arguments.next<std::optional<double>>());
  options.alibi_slopes(arguments.next<Tensor>());
  options.sinks(arguments.next<Tensor>());
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

/// With the random numbers of `seed`, where it draws any.
at::Tensor attend(const VarlenCall& call, uint64_t seed) {
  std::optional<SeededNumbers> numbers;
  if (call.options.dropout() > 0.0) numbers.emplace(call.query.device(), seed);
  return attend(call);
}

Results varlen_own(Arguments& arguments) {
  return {attend(read_varlen(arguments)).contiguous()};
}

Results varlen_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  return varlen_own(arguments);
}

/// Offsets are the call's own to check: here they hold no numbers.
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

// _attend_varlen_forward(<arguments of attend_varlen>) -> output, seed: int64 [1] on the CPU

Results forward_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  const auto call = read_varlen(arguments);
  const bool draws = call.options.dropout() > 0.0;
  const uint64_t seed = draws ? draw_seed(call.query.device()) : 0;
  return {attend(call, seed).contiguous(),
          at::empty({1}, at::kLong).fill_(static_cast<int64_t>(seed))};
}

Results forward_on_meta(Arguments& arguments) {
  const auto call = read_varlen(arguments);
  return {empty_output(call), at::empty({1}, call.query.options().dtype(at::kLong))};
}

// attend_varlen_backward(output_gradient, seed, <arguments of attend_varlen>, wanted) -> gradients
// of query, key, value and sinks

struct VarlenBackward {
  at::Tensor of_output, seed;
  VarlenCall call;
  c10::List<bool> wanted;
};

VarlenBackward read_varlen_backward(Arguments& arguments) {
  auto of_output = arguments.next<at::Tensor>();
  auto seed = arguments.next<at::Tensor>();
  auto call = read_varlen(arguments);
  return {of_output, seed, call, arguments.next<c10::List<bool>>()};
}

Results backward_of_varlen(Arguments& arguments) {
  const auto [of_output, seed, call, wanted] = read_varlen_backward(arguments);
  auto again = call;
  auto sinks = call.options.sinks().value_or(at::Tensor());
  variable_list inputs;
  at::Tensor output;
  {
    const RecordingScope recording;
    const auto stand_in = [&, &wanted = wanted](at::Tensor& tensor, size_t i) {
      if (tensor.defined()) tensor = tensor.detach().view_as(tensor);
      if (wanted[i]) inputs.push_back(tensor.requires_grad_());
    };
    stand_in(again.query, 0);
    stand_in(again.key, 1);
    stand_in(again.value, 2);
    stand_in(sinks, 3);
    if (sinks.defined()) again.options.sinks(sinks);
    output = attend(again, static_cast<uint64_t>(seed.const_data_ptr<int64_t>()[0]));
  }
  const auto found = torch::autograd::grad({output}, inputs, {of_output}, /*retain_graph=*/false,
                                           /*create_graph=*/false, /*allow_unused=*/true);
  const at::Tensor originals[] = {call.query, call.key, call.value, sinks};
  Results results(kInputs);
  auto next = found.begin();
  for (size_t i = 0; i < kInputs; ++i) {
    if (wanted[i]) results[i] = laid_out_like(*next++, originals[i]);
  }
  return results;
}

Results backward_of_varlen_on_meta(Arguments& arguments) {
  const auto [of_output, seed, call, wanted] = read_varlen_backward(arguments);
  const at::Tensor originals[] = {call.query, call.key, call.value,
                                  call.options.sinks().value_or(at::Tensor())};
  Results results(kInputs);
  for (size_t i = 0; i < kInputs; ++i) {
    if (wanted[i]) results[i] = at::empty_like(originals[i]);
  }
  return results;
}

struct TracedVarlen : public torch::autograd::Function<TracedVarlen> {
  static Variable forward(AutogradContext* context, at::TensorList /*inputs*/,
                          const Stack& arguments) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto results = call_operator("_attend_varlen_forward", arguments);
    save_call(context, arguments, {results[1]});
    return results[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_results) {
    const auto saved = saved_call(context);
    Arguments arguments(saved.arguments, saved.arguments.size());
    const bool with_sinks = read_varlen(arguments).options.sinks().has_value();
    c10::List<bool> wanted;
    for (size_t i = 0; i < kInputs; ++i) {
      wanted.push_back((i < 3 || with_sinks) && context->needs_input_grad(i));
    }
    Stack stack = {of_results[0], saved.results[0]};
    stack.insert(stack.end(), saved.arguments.begin(), saved.arguments.end());
    stack.emplace_back(wanted);
    auto gradients = call_operator("attend_varlen_backward", std::move(stack));
    gradients.resize(with_sinks ? 4 : 3);
    gradients.emplace_back();  // of arguments
    return gradients;
  }
};

variable_list differentiable_of_varlen(Arguments& arguments) {
  const auto call = read_varlen(arguments);
  variable_list tensors = {call.query, call.key, call.value};
  if (call.options.sinks()) tensors.push_back(*call.options.sinks());
  return tensors;
}

Results varlen_traced(const Stack& arguments, const variable_list& inputs) {
  return {TracedVarlen::apply(at::TensorList(inputs), arguments)};
}

void register_varlen(torch::Library& library) {
  library.impl("attend_varlen", boxed<varlen_on_device>());
  library.impl("_attend_varlen_forward", boxed<forward_on_device>());
  library.impl("attend_varlen_backward", boxed<backward_of_varlen>());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(heed, library) {
  define(library, "attend_varlen(" + kVarlenArguments + ") -> Tensor", /*draws=*/true);
  define(library, "_attend_varlen_forward(" + kVarlenArguments + ") -> (Tensor output, Tensor seed)",
         /*draws=*/true);
  define(library,
         "attend_varlen_backward(Tensor output_gradient, Tensor seed, " + kVarlenArguments +
             ", bool[4] wanted) -> (Tensor query_gradient, Tensor key_gradient, Tensor "
             "value_gradient, Tensor sinks_gradient)",
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
  library.impl("attend_varlen",
               torch::CppFunction::makeFromBoxedFunction<
                   &call_recorded<varlen_own, differentiable_of_varlen, varlen_traced>>());
  library.impl("_attend_varlen_forward", torch::autograd::autogradNotImplementedFallback());
  library.impl("attend_varlen_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace heed::detail
