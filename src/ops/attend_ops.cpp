#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <heed/attend.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <limits>

#include "attend/kept_attention.h"
#include "core/attend_checks.h"
#include "core/checks.h"
#include "core/dtypes.h"
#include "ops/attend_call.h"

/// The operators attend and attend_with_lse; the operators of their two passes, where a compiler
/// traces them.

namespace heed::detail {

namespace {

constexpr const char* name_of(Wanted wanted) {
  return wanted == Wanted::output ? "attend" : "attend_with_lse";
}

constexpr Wanted wanted_of(bool with_lse) {
  return with_lse ? Wanted::output_and_lse : Wanted::output;
}

template <Wanted wanted>
Results attend_own(Arguments& arguments) {
  const auto [query, key, value, options] = read_attend(arguments);
  if constexpr (wanted == Wanted::output) {
    return {by_token(heed::attend(query, key, value, options))};
  } else {
    const auto [output, lse] = heed::attend_with_lse(query, key, value, options);
    return {by_token(output), lse.contiguous()};
  }
}

template <Wanted wanted>
Results attend_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  return attend_own<wanted>(arguments);
}

/// Where sizes are not known yet, the call itself checks them.
void check_known(const char* function, const AttendCall& call) {
  const auto& [query, key, value, options] = call;
  if (!has_symbolic_sizes({query, key, value, options.mask().value_or(at::Tensor()),
                           options.bias().value_or(at::Tensor()),
                           options.alibi_slopes().value_or(at::Tensor()),
                           options.sinks().value_or(at::Tensor()),
                           options.documents().value_or(at::Tensor()),
                           options.key_documents().value_or(at::Tensor())})) {
    return check_attend(function, query, key, value, options);
  }
  check_rank(function, "query", query, 4);
  check_rank(function, "key", key, 4);
  check_rank(function, "value", value, 4);
  check_score_options(function, options);
}

/// [B, H, L] in the type computed in.
at::Tensor empty_rows(const at::Tensor& query) {
  return at::empty_symint({query.sym_size(0), query.sym_size(1), query.sym_size(2)},
                          query.options().dtype(compute_dtype(query.scalar_type())));
}

template <Wanted wanted>
Results attend_on_meta(Arguments& arguments) {
  const auto call = read_attend(arguments);
  check_known(name_of(wanted), call);
  Results results = {empty_by_token(call.query, call.value)};
  if (wanted == Wanted::output_and_lse) results.push_back(empty_rows(call.query));
  return results;
}

// _attend_forward(<arguments of attend>, with_lse) -> what KeptAttention has

Problem problem_of(const AttendCall& call, bool with_lse) {
  const auto wanted = wanted_of(with_lse);
  return make_problem(name_of(wanted), call.query, call.key, call.value, call.options, wanted);
}

Results keep_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  const auto call = read_attend(arguments);
  auto kept = attend_keeping(problem_of(call, arguments.next<bool>()));
  if (kept.output_rest.dim() == 4) kept.output_rest = by_token(kept.output_rest);
  return {by_token(kept.output), kept.largest, kept.inverse_sum, kept.output_rest, kept.seed};
}

Results keep_on_meta(Arguments& arguments) {
  const auto call = read_attend(arguments);
  const auto& query = call.query;
  check_known(name_of(wanted_of(arguments.next<bool>())), call);
  const bool rounds = compute_dtype(query.scalar_type()) != query.scalar_type();
  return {empty_by_token(query, call.value), empty_rows(query), empty_rows(query),
          rounds ? empty_by_token(query, call.value) : at::empty({0}, query.options()),
          at::empty({1}, query.options().dtype(at::kLong))};
}

// attend_backward(output_gradient, lse_gradient, <KeptAttention>, <arguments of attend>, with_lse,
// wanted) -> gradients of query, key, value, bias and sinks

KeptAttention read_kept(Arguments& arguments) {
  KeptAttention kept;
  for (auto* tensor : {&kept.output, &kept.largest, &kept.inverse_sum, &kept.output_rest,
                       &kept.seed}) {
    *tensor = arguments.next<at::Tensor>();
  }
  return kept;
}

struct BackwardCall {
  at::Tensor of_output, of_lse;  // undefined where there is none
  KeptAttention kept;
  AttendCall call;
  bool with_lse;
  WantedGradients wanted;
};

BackwardCall read_backward(Arguments& arguments) {
  BackwardCall backward;
  const auto gradient = [&] {
    return arguments.next<std::optional<at::Tensor>>().value_or(at::Tensor());
  };
  backward.of_output = gradient();
  backward.of_lse = gradient();
  backward.kept = read_kept(arguments);
  backward.call = read_attend(arguments);
  backward.with_lse = arguments.next<bool>();
  const auto wanted = arguments.next<c10::List<bool>>();
  for (size_t i = 0; i < backward.wanted.size(); ++i) backward.wanted[i] = wanted[i];
  return backward;
}

/// make_problem bounds sinks by the largest number of the type computed in.
at::Tensor gradient_of_given_sinks(const at::Tensor& gradient, const at::Tensor& sinks) {
  if (!gradient.defined()) return gradient;
  const double largest = gradient.scalar_type() == at::kDouble
                             ? std::numeric_limits<double>::max()
                             : std::numeric_limits<float>::max();
  const auto bounded = sinks.to(gradient.scalar_type()).gt(largest);
  return gradient.masked_fill(bounded, 0.0).to(sinks.scalar_type());
}

Results backward_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  const auto [of_output, of_lse, kept, call, with_lse, wanted] = read_backward(arguments);
  const auto found = gradients_of_kept(problem_of(call, with_lse), kept, wanted, of_output, of_lse);
  Results results = {laid_out_like(found[0], call.query), laid_out_like(found[1], call.key),
                     laid_out_like(found[2], call.value), found[3], found[4]};
  const auto& options = call.options;
  if (wanted[3] && options.bias()) {
    results[3] = found[3].reshape(options.bias()->sizes()).contiguous();
  }
  if (wanted[4] && options.sinks()) {
    results[4] = gradient_of_given_sinks(found[4], *options.sinks()).contiguous();
  }
  return results;
}

Results backward_on_meta(Arguments& arguments) {
  const auto backward = read_backward(arguments);
  const auto& [query, key, value, options] = backward.call;
  Results results(kGradientTensors);
  if (backward.wanted[0]) results[0] = at::empty_like(query);
  if (backward.wanted[1]) results[1] = at::empty_like(key);
  if (backward.wanted[2]) results[2] = at::empty_like(value);
  const auto dense = [](const at::Tensor& tensor) {
    return at::empty_symint(tensor.sym_sizes(), tensor.options());
  };
  if (backward.wanted[3] && options.bias()) results[3] = dense(*options.bias());
  if (backward.wanted[4] && options.sinks()) results[4] = dense(*options.sinks());
  return results;
}

/// Returns {output}, or {output, lse}.
struct TracedAttend : public torch::autograd::Function<TracedAttend> {
  static variable_list forward(AutogradContext* context, at::TensorList /*inputs*/,
                               const Stack& arguments, bool with_lse) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->set_materialize_grads(false);
    context->saved_data["with_lse"] = with_lse;
    auto call = arguments;
    call.emplace_back(with_lse);
    const auto results = call_operator("_attend_forward", std::move(call));
    save_call(context, arguments, results);
    const KeptAttention kept{results[0], results[1], results[2], results[3], results[4]};
    if (!with_lse) return {kept.output};
    return {kept.output, lse_of(kept)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_results) {
    const auto saved = saved_call(context);
    Arguments arguments(saved.arguments, saved.arguments.size());
    const auto call = read_attend(arguments);
    const bool given[] = {true, true, true, call.options.bias().has_value(),
                          call.options.sinks().has_value()};
    c10::List<bool> wanted;
    size_t input = 0;
    for (const bool is_given : given) {
      wanted.push_back(is_given && context->needs_input_grad(input));
      if (is_given) ++input;
    }
    const auto optional = [&](size_t i) {
      return i < of_results.size() && of_results[i].defined() ? c10::IValue(of_results[i])
                                                              : c10::IValue();
    };
    Stack stack = {optional(0), optional(1)};
    stack.insert(stack.end(), saved.results.begin(), saved.results.end());
    stack.insert(stack.end(), saved.arguments.begin(), saved.arguments.end());
    stack.emplace_back(context->saved_data["with_lse"]);
    stack.emplace_back(wanted);
    const auto found = call_operator("attend_backward", std::move(stack));
    variable_list gradients;
    for (size_t i = 0; i < found.size(); ++i) {
      if (given[i]) gradients.push_back(found[i]);
    }
    gradients.resize(gradients.size() + 2);  // of arguments and with_lse
    return gradients;
  }
};

variable_list differentiable(Arguments& arguments) {
  return differentiable_tensors(read_attend(arguments));
}

template <Wanted wanted>
Results attend_traced(const Stack& arguments, const variable_list& inputs) {
  return TracedAttend::apply(at::TensorList(inputs), arguments, wanted == Wanted::output_and_lse);
}

template <Wanted wanted>
torch::CppFunction recorded() {
  return torch::CppFunction::makeFromBoxedFunction<
      &call_recorded<attend_own<wanted>, differentiable, attend_traced<wanted>>>();
}

void register_on_device(torch::Library& library) {
  library.impl("attend", boxed<attend_on_device<Wanted::output>>());
  library.impl("attend_with_lse", boxed<attend_on_device<Wanted::output_and_lse>>());
  library.impl("_attend_forward", boxed<keep_on_device>());
  library.impl("attend_backward", boxed<backward_on_device>());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(heed, library) {
  const std::string kept =
      "Tensor output, Tensor largest, Tensor inverse_sum, Tensor output_rest, Tensor seed";
  define(library, "attend(" + kAttendArguments + ") -> Tensor", /*draws=*/true);
  define(library, "attend_with_lse(" + kAttendArguments + ") -> (Tensor output, Tensor lse)",
         /*draws=*/true);
  define(library,
         "_attend_forward(" + kAttendArguments + ", bool with_lse=False) -> (" + kept + ")",
         /*draws=*/true);
  define(library,
         "attend_backward(Tensor? output_gradient, Tensor? lse_gradient, " + kept + ", " +
             kAttendArguments +
             ", bool with_lse=False, bool[5] wanted) -> (Tensor query_gradient, Tensor "
             "key_gradient, Tensor value_gradient, Tensor bias_gradient, Tensor sinks_gradient)",
         /*draws=*/false);
}

TORCH_LIBRARY_IMPL(heed, CPU, library) { register_on_device(library); }

TORCH_LIBRARY_IMPL(heed, CUDA, library) { register_on_device(library); }

TORCH_LIBRARY_IMPL(heed, Meta, library) {
  library.impl("attend", boxed<attend_on_meta<Wanted::output>>());
  library.impl("attend_with_lse", boxed<attend_on_meta<Wanted::output_and_lse>>());
  library.impl("_attend_forward", boxed<keep_on_meta>());
  library.impl("attend_backward", boxed<backward_on_meta>());
}

TORCH_LIBRARY_IMPL(heed, Autograd, library) {
  library.impl("attend", recorded<Wanted::output>());
  library.impl("attend_with_lse", recorded<Wanted::output_and_lse>());
  library.impl("_attend_forward", torch::autograd::autogradNotImplementedFallback());
  library.impl("attend_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace heed::detail
