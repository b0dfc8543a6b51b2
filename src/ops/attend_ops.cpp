// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <heed/attend.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "attend/kept_attention.h"
#include "core/attend_checks.h"
#include "core/checks.h"
#include "core/dtypes.h"
#include "ops/attend_call.h"

/// The operators attend and attend_with_lse, and the operators _attend_forward and
/// attend_backward, of which they consist when a compiler traces them.

namespace heed::detail {

namespace {

constexpr const char* name_of(bool with_lse) { return with_lse ? "attend_with_lse" : "attend"; }

constexpr Wanted wanted_of(bool with_lse) {
  return with_lse ? Wanted::output_and_lse : Wanted::output;
}

template <bool WithLse>
Results attend_own(Arguments& arguments) {
  const auto call = read_attend(arguments, Integers::known);
  if constexpr (!WithLse) {
    return {by_token(heed::attend(call.query, call.key, call.value, call.options))};
  } else {
    const auto [output, lse] =
        heed::attend_with_lse(call.query, call.key, call.value, call.options);
    return {by_token(output), lse.contiguous()};
  }
}

template <bool WithLse>
Results attend_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  return attend_own<WithLse>(arguments);
}

/// A meta tensor [B, H, L] in the dtype of the computation, as the lse.
at::Tensor empty_rows(const at::Tensor& query) {
  return at::empty_symint({query.sym_size(0), query.sym_size(1), query.sym_size(2)},
                          query.options().dtype(compute_dtype(query.scalar_type())));
}

template <bool WithLse>
Results attend_on_meta(Arguments& arguments) {
  const auto call = read_attend(arguments, Integers::may_be_symbols);
  check_known(name_of(WithLse), call);
  Results results = {empty_by_token(call.query, call.value)};
  if (WithLse) results.push_back(empty_rows(call.query));
  return results;
}

// _attend_forward(<arguments of attend>, <pass_schema()>) -> <KeptAttention>

std::string pass_schema() { return "Tensor? seed=None, bool with_lse=False, " + wanted_schema(); }

/// The arguments that both passes have besides those of attend.
struct PassOptions {
  std::optional<at::Tensor> seed;
  bool with_lse;
  WantedGradients wanted;
};

PassOptions read_pass(Arguments& arguments) {
  PassOptions options;
  options.seed = arguments.next<std::optional<at::Tensor>>();
  options.with_lse = arguments.next<bool>();
  options.wanted = read_wanted(arguments);
  return options;
}

KeptCall kept_call(const AttendCall& call, const PassOptions& pass) {
  return {make_problem(name_of(pass.with_lse), call.query, call.key, call.value, call.options,
                       wanted_of(pass.with_lse)),
          seed_of(pass.seed), pass.wanted};
}

Results keep_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  const auto call = read_attend(arguments, Integers::known);
  const auto kept = attend_keeping(kept_call(call, read_pass(arguments)));
  const bool rounds = kept.output_rest.dim() == 4;
  return {by_token(kept.output), kept.largest, kept.inverse_sum,
          rounds ? by_token(kept.output_rest) : kept.output_rest};
}

Results keep_on_meta(Arguments& arguments) {
  const auto call = read_attend(arguments, Integers::may_be_symbols);
  const auto& query = call.query;
  check_known(name_of(read_pass(arguments).with_lse), call);
  const bool rounds = compute_dtype(query.scalar_type()) != query.scalar_type();
  return {empty_by_token(query, call.value), empty_rows(query), empty_rows(query),
          rounds ? empty_by_token(query, call.value) : at::empty({0}, query.options())};
}

// attend_backward(output_gradient, lse_gradient, <KeptAttention>, <arguments of attend>,
// <pass_schema()>) -> gradients of kGradientNames

struct BackwardCall {
  at::Tensor of_output, of_lse;  // gradients, which may be undefined
  KeptAttention kept;
  AttendCall call;
  PassOptions pass;
};

BackwardCall read_backward(Arguments& arguments, Integers integers) {
  BackwardCall backward;
  auto& kept = backward.kept;
  for (auto* gradient : {&backward.of_output, &backward.of_lse}) {
    *gradient = arguments.next<std::optional<at::Tensor>>().value_or(at::Tensor());
  }
  for (auto* tensor : {&kept.output, &kept.largest, &kept.inverse_sum, &kept.output_rest}) {
    *tensor = arguments.next<at::Tensor>();
  }
  backward.call = read_attend(arguments, integers);
  backward.pass = read_pass(arguments);
  return backward;
}

/// Checks the sizes and dtypes of gradients and kept tensors. Kernels rely on them when they read
/// memory.
void check_kept(const BackwardCall& backward) {
  constexpr auto kBackward = "attend_backward";
  const auto &query = backward.call.query, &value = backward.call.value;
  const auto check = [&](const char* name, const at::Tensor& tensor, at::IntArrayRef sizes,
                         at::ScalarType dtype) {
    if (!tensor.defined()) return;
    check_same_device(kBackward, name, tensor, "query", query);
    HEED_CHECK(tensor.sizes() == sizes && tensor.scalar_type() == dtype,
               "{}: {} must be {} [{}]; it is {} {}", kBackward, name, c10::toString(dtype),
               fmt::join(sizes, ", "), c10::toString(tensor.scalar_type()), shape(tensor));
  };
  const auto dtype = query.scalar_type(), precise = compute_dtype(dtype);
  const auto rows = query.sizes().slice(0, 3);
  auto outputs = rows.vec();
  outputs.push_back(value.size(3));
  const auto& kept = backward.kept;
  check("output_gradient", backward.of_output, outputs, dtype);
  check("lse_gradient", backward.of_lse, rows, precise);
  check("output", kept.output, outputs, dtype);
  check("largest", kept.largest, rows, precise);
  check("inverse_sum", kept.inverse_sum, rows, precise);
  if (dtype != precise) check("output_rest", kept.output_rest, outputs, dtype);
}

/// The gradient of an argument from that of its tensor in the Problem. make_problem bounds sinks
/// and slopes; the gradient of those that it changed is 0.
at::Tensor gradient_of_given(size_t index, const KeptCall& call, const at::Tensor& gradient,
                             const at::Tensor& given) {
  if (index < 3) return laid_out_like(gradient, given);  // query, key and value
  auto own = gradient.reshape(given.sizes());
  if (index > 3) {  // not the bias
    const auto& used = call.problem.*kProblemTensors[index];
    const auto is_changed = used.reshape(given.sizes()).ne(given.to(used.scalar_type()));
    own = own.masked_fill(is_changed, 0.0);
  }
  return own.to(given.scalar_type()).contiguous();
}

Results backward_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  auto backward = read_backward(arguments, Integers::known);
  auto& [of_output, of_lse, kept, call, pass] = backward;
  const auto tensors = differentiable_tensors(call);
  for (size_t i = 0; i < tensors.size(); ++i) pass.wanted[i] = pass.wanted[i] && tensors[i];
  const auto to_differentiate = kept_call(call, pass);
  check_kept(backward);
  kept.largest = kept.largest.contiguous();
  kept.inverse_sum = kept.inverse_sum.contiguous();
  const auto found = gradients_of_kept(to_differentiate, kept, of_output, of_lse);
  Results results(kGradientTensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (pass.wanted[i]) results[i] = gradient_of_given(i, to_differentiate, found[i], *tensors[i]);
  }
  return results;
}

Results backward_on_meta(Arguments& arguments) {
  auto backward = read_backward(arguments, Integers::may_be_symbols);
  const auto tensors = differentiable_tensors(backward.call);
  Results results(kGradientTensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!backward.pass.wanted[i] || !tensors[i]) continue;
    results[i] = i < 3 ? at::empty_like(*tensors[i]) : empty_dense(*tensors[i]);
  }
  return results;
}

/// A traced call, recorded for autograd with an operator for each pass. `arguments` are those of
/// _attend_forward. Returns {output}, or {output, lse}.
struct TracedAttend : public torch::autograd::Function<TracedAttend> {
  static variable_list forward(AutogradContext* context, at::TensorList /*inputs*/,
                               const Stack& arguments, bool with_lse) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->set_materialize_grads(false);
    const auto results = call_operator("_attend_forward", arguments);
    save_call(context, arguments, results);
    const KeptAttention kept{results[0], results[1], results[2], results[3]};
    if (!with_lse) return {kept.output};
    return {kept.output, lse_of(kept)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_results) {
    const auto saved = saved_call(context);
    Stack stack;
    for (size_t i = 0; i < 2; ++i) {
      const bool is_given = i < of_results.size() && of_results[i].defined();
      stack.push_back(is_given ? c10::IValue(of_results[i]) : c10::IValue());
    }
    stack.insert(stack.end(), saved.results.begin(), saved.results.end());
    stack.insert(stack.end(), saved.arguments.begin(), saved.arguments.end());
    const auto found = call_operator("attend_backward", std::move(stack));
    Arguments arguments(saved.arguments, saved.arguments.size());
    auto call = read_attend(arguments, Integers::may_be_symbols);
    const auto tensors = differentiable_tensors(call);
    variable_list gradients;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i]) gradients.push_back(found[i]);
    }
    gradients.resize(gradients.size() + 2);  // for arguments and with_lse
    return gradients;
  }
};

CallToRecord described_attend(Arguments& arguments) {
  return to_record(read_attend(arguments, Integers::may_be_symbols));
}

template <bool WithLse>
Results attend_traced(const Stack& arguments, const CallToRecord& to_record) {
  Arguments to_read(arguments, arguments.size());
  auto call = arguments;
  call.emplace_back(traced_seed(to_record.dropout));
  call.emplace_back(WithLse);
  call.emplace_back(requiring(read_attend(to_read, Integers::may_be_symbols)));
  return TracedAttend::apply(at::TensorList(to_record.inputs), call, WithLse);
}

template <bool WithLse>
torch::CppFunction recorded() {
  return torch::CppFunction::makeFromBoxedFunction<
      &call_recorded<attend_own<WithLse>, described_attend, attend_traced<WithLse>>>();
}

void register_on_device(torch::Library& library) {
  library.impl("attend", boxed<attend_on_device</*WithLse=*/false>>());
  library.impl("attend_with_lse", boxed<attend_on_device</*WithLse=*/true>>());
  library.impl("_attend_forward", boxed<keep_on_device>());
  library.impl("attend_backward", boxed<backward_on_device>());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(heed, library) {
  constexpr auto kKept = "Tensor output, Tensor largest, Tensor inverse_sum, Tensor output_rest";
  const auto arguments = attend_arguments();
  const auto passed = fmt::format("{}, {}", arguments, pass_schema());
  define(library, fmt::format("attend({}) -> Tensor", arguments), /*draws=*/true);
  define(library, fmt::format("attend_with_lse({}) -> (Tensor output, Tensor lse)", arguments),
         /*draws=*/true);
  define(library, fmt::format("_attend_forward({}) -> ({})", passed, kKept), /*draws=*/false);
  define(
      library,
      fmt::format("attend_backward(Tensor? output_gradient, Tensor? lse_gradient, {}, {}) -> ({})",
                  kKept, passed, gradients_schema()),
      /*draws=*/false);
}

TORCH_LIBRARY_IMPL(heed, CPU, library) { register_on_device(library); }

TORCH_LIBRARY_IMPL(heed, CUDA, library) { register_on_device(library); }

TORCH_LIBRARY_IMPL(heed, Meta, library) {
  library.impl("attend", boxed<attend_on_meta</*WithLse=*/false>>());
  library.impl("attend_with_lse", boxed<attend_on_meta</*WithLse=*/true>>());
  library.impl("_attend_forward", boxed<keep_on_meta>());
  library.impl("attend_backward", boxed<backward_on_meta>());
}

TORCH_LIBRARY_IMPL(heed, Autograd, library) {
  library.impl("attend", recorded</*WithLse=*/false>());
  library.impl("attend_with_lse", recorded</*WithLse=*/true>());
  library.impl("_attend_forward", torch::autograd::autogradNotImplementedFallback());
  library.impl("attend_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace heed::detail
