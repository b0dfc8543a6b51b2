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
  const auto [query, key, value, options] = read_attend(arguments);
  if constexpr (!WithLse) {
    return {by_token(heed::attend(query, key, value, options))};
  } else {
    const auto [output, lse] = heed::attend_with_lse(query, key, value, options);
    return {by_token(output), lse.contiguous()};
  }
}

template <bool WithLse>
Results attend_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  return attend_own<WithLse>(arguments);
}

/// Checks a call with meta tensors. Symbolic sizes are not checked here, but when the call runs.
void check_known(const char* function, const AttendCall& call) {
  const auto& [query, key, value, options] = call;
  if (!has_symbolic_sizes(
          {query, key, value, options.mask().value_or(at::Tensor()),
           options.bias().value_or(at::Tensor()), options.alibi_slopes().value_or(at::Tensor()),
           options.sinks().value_or(at::Tensor()), options.documents().value_or(at::Tensor()),
           options.key_documents().value_or(at::Tensor())})) {
    return check_attend(function, query, key, value, options);
  }
  check_rank(function, "query", query, 4);
  check_rank(function, "key", key, 4);
  check_rank(function, "value", value, 4);
  check_score_options(function, options);
}

/// A meta tensor [B, H, L] in the dtype of the computation, as the lse.
at::Tensor empty_rows(const at::Tensor& query) {
  return at::empty_symint({query.sym_size(0), query.sym_size(1), query.sym_size(2)},
                          query.options().dtype(compute_dtype(query.scalar_type())));
}

template <bool WithLse>
Results attend_on_meta(Arguments& arguments) {
  const auto call = read_attend(arguments);
  check_known(name_of(WithLse), call);
  Results results = {empty_by_token(call.query, call.value)};
  if (WithLse) results.push_back(empty_rows(call.query));
  return results;
}

// _attend_forward(<arguments of attend>, <kPassOptions>) -> <KeptAttention>

constexpr auto kPassOptions =
    "Tensor? seed=None, bool with_lse=False, bool[5] wanted=[True, True, True, True, True]";

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
  const auto wanted = arguments.next<c10::List<bool>>();
  for (size_t i = 0; i < options.wanted.size(); ++i) options.wanted[i] = wanted[i];
  return options;
}

KeptCall kept_call(const AttendCall& call, const PassOptions& pass) {
  return {make_problem(name_of(pass.with_lse), call.query, call.key, call.value, call.options,
                       wanted_of(pass.with_lse)),
          seed_of(pass.seed), pass.wanted};
}

Results keep_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  const auto call = read_attend(arguments);
  const auto kept = attend_keeping(kept_call(call, read_pass(arguments)));
  const bool rounds = kept.output_rest.dim() == 4;
  return {by_token(kept.output), kept.largest, kept.inverse_sum,
          rounds ? by_token(kept.output_rest) : kept.output_rest};
}

Results keep_on_meta(Arguments& arguments) {
  const auto call = read_attend(arguments);
  const auto& query = call.query;
  check_known(name_of(read_pass(arguments).with_lse), call);
  const bool rounds = compute_dtype(query.scalar_type()) != query.scalar_type();
  return {empty_by_token(query, call.value), empty_rows(query), empty_rows(query),
          rounds ? empty_by_token(query, call.value) : at::empty({0}, query.options())};
}

// attend_backward(output_gradient, lse_gradient, <KeptAttention>, <arguments of attend>,
// <kPassOptions>) -> gradients of query, key, value, bias and sinks

struct BackwardCall {
  at::Tensor of_output, of_lse;  // gradients, which may be undefined
  KeptAttention kept;
  AttendCall call;
  PassOptions pass;
};

BackwardCall read_backward(Arguments& arguments) {
  BackwardCall backward;
  auto& kept = backward.kept;
  for (auto* gradient : {&backward.of_output, &backward.of_lse}) {
    *gradient = arguments.next<std::optional<at::Tensor>>().value_or(at::Tensor());
  }
  for (auto* tensor : {&kept.output, &kept.largest, &kept.inverse_sum, &kept.output_rest}) {
    *tensor = arguments.next<at::Tensor>();
  }
  backward.call = read_attend(arguments);
  backward.pass = read_pass(arguments);
  return backward;
}

/// Checks the sizes and dtypes of gradients and kept tensors. Kernels rely on them when they read
/// memory.
void check_kept(const BackwardCall& backward) {
  constexpr auto kBackward = "attend_backward";
  const auto& [query, key, value, options] = backward.call;
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

/// The gradient of the sinks that the caller passed. make_problem replaces larger sinks by the
/// largest number of the computation, so their gradient is 0.
at::Tensor gradient_of_given_sinks(const at::Tensor& gradient, const at::Tensor& sinks) {
  const auto bounded =
      sinks.to(gradient.scalar_type()).gt(largest_computed(gradient.scalar_type()));
  return gradient.masked_fill(bounded, 0.0).to(sinks.scalar_type());
}

Results backward_on_device(Arguments& arguments) {
  const at::NoGradGuard no_grad;
  auto backward = read_backward(arguments);
  auto& [of_output, of_lse, kept, call, pass] = backward;
  const auto &bias = call.options.bias(), &sinks = call.options.sinks();
  pass.wanted[3] = pass.wanted[3] && bias;
  pass.wanted[4] = pass.wanted[4] && sinks;
  const auto to_differentiate = kept_call(call, pass);
  check_kept(backward);
  kept.largest = kept.largest.contiguous();
  kept.inverse_sum = kept.inverse_sum.contiguous();
  const auto found = gradients_of_kept(to_differentiate, kept, of_output, of_lse);
  Results results = {laid_out_like(found[0], call.query),
                     laid_out_like(found[1], call.key),
                     laid_out_like(found[2], call.value),
                     {},
                     {}};
  if (bias && pass.wanted[3]) results[3] = found[3].reshape(bias->sizes()).contiguous();
  if (sinks && pass.wanted[4]) results[4] = gradient_of_given_sinks(found[4], *sinks).contiguous();
  return results;
}

Results backward_on_meta(Arguments& arguments) {
  const auto backward = read_backward(arguments);
  const auto& [query, key, value, options] = backward.call;
  const auto& wanted = backward.pass.wanted;
  Results results(kGradientTensors);
  if (wanted[0]) results[0] = at::empty_like(query);
  if (wanted[1]) results[1] = at::empty_like(key);
  if (wanted[2]) results[2] = at::empty_like(value);
  if (wanted[3] && options.bias()) results[3] = empty_dense(*options.bias());
  if (wanted[4] && options.sinks()) results[4] = empty_dense(*options.sinks());
  return results;
}

/// Whether query, key, value, bias and sinks require grad; false for those that are absent.
c10::List<bool> requiring(const AttendCall& call) {
  const auto& [query, key, value, options] = call;
  const auto requires_grad = [](const std::optional<at::Tensor>& tensor) {
    return tensor && tensor->requires_grad();
  };
  return c10::List<bool>({query.requires_grad(), key.requires_grad(), value.requires_grad(),
                          requires_grad(options.bias()), requires_grad(options.sinks())});
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
    const auto options = read_attend(arguments).options;
    variable_list gradients(found.begin(), found.begin() + 3);
    if (options.bias()) gradients.push_back(found[3]);
    if (options.sinks()) gradients.push_back(found[4]);
    gradients.resize(gradients.size() + 2);  // for arguments and with_lse
    return gradients;
  }
};

CallToRecord described_attend(Arguments& arguments) {
  const auto call = read_attend(arguments);
  return {differentiable_tensors(call), call.options.dropout()};
}

template <bool WithLse>
Results attend_traced(const Stack& arguments, const CallToRecord& to_record) {
  Arguments to_read(arguments, arguments.size());
  auto call = arguments;
  call.emplace_back(traced_seed(to_record.dropout));
  call.emplace_back(WithLse);
  call.emplace_back(requiring(read_attend(to_read)));
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
  constexpr auto kGradients =
      "Tensor query_gradient, Tensor key_gradient, Tensor value_gradient, Tensor bias_gradient, "
      "Tensor sinks_gradient";
  const auto arguments = attend_arguments();
  const auto passed = fmt::format("{}, {}", arguments, kPassOptions);
  define(library, fmt::format("attend({}) -> Tensor", arguments), /*draws=*/true);
  define(library, fmt::format("attend_with_lse({}) -> (Tensor output, Tensor lse)", arguments),
         /*draws=*/true);
  define(library, fmt::format("_attend_forward({}) -> ({})", passed, kKept), /*draws=*/false);
  define(
      library,
      fmt::format("attend_backward(Tensor? output_gradient, Tensor? lse_gradient, {}, {}) -> ({})",
                  kKept, passed, kGradients),
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
