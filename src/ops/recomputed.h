// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include <optional>
#include <string>
#include <vector>

#include "attend/paths/second_pass.h"
#include "core/random_state.h"
#include "ops/attend_call.h"

namespace heed::detail {

/// An operator whose backward pass computes the call again, and the operators of its two passes:
///
///   name(<arguments>) -> <results>
///   _name_forward(<arguments>, seed, wanted) -> <results>
///   name_backward(<gradients of results>, <arguments>, seed, wanted) -> <gradients>
///
/// `Call` derives from AttendCall and has
///   kName, kResults       the operator's name and, in its schema, the names of its results
///   arguments()           the arguments in its schema, and
///   read(Arguments&, Integers)  what reads them
///   compute(), empty()    the results, and those of a call with meta tensors
template <typename Call>
class Recomputed {
 public:
  static void define_operators(torch::Library& library) {
    std::vector<std::string> results, gradients;
    for (const auto* result : Call::kResults) {
      results.push_back(fmt::format("Tensor {}", result));
      gradients.push_back(fmt::format("Tensor? {}_gradient", result));
    }
    const auto returned =
        results.size() == 1 ? "Tensor" : fmt::format("({})", fmt::join(results, ", "));
    const auto arguments = Call::arguments();
    const auto passed = fmt::format("{}, Tensor? seed=None, {}", arguments, wanted_schema());
    define(library, fmt::format("{}({}) -> {}", Call::kName, arguments, returned), /*draws=*/true);
    define(library, fmt::format("{}({}) -> {}", forward_name(), passed, returned),
           /*draws=*/false);
    define(library,
           fmt::format("{}({}, {}) -> ({})", backward_name(), fmt::join(gradients, ", "), passed,
                       gradients_schema()),
           /*draws=*/false);
  }

  static void register_on_device(torch::Library& library) {
    library.impl(Call::kName, boxed<on_device>());
    library.impl(forward_name().c_str(), boxed<forward_on_device>());
    library.impl(backward_name().c_str(), boxed<backward_on_device>());
  }

  static void register_on_meta(torch::Library& library) {
    library.impl(Call::kName, boxed<on_meta>());
    library.impl(forward_name().c_str(), boxed<on_meta>());
    library.impl(backward_name().c_str(), boxed<backward_on_meta>());
  }

  static void register_for_autograd(torch::Library& library) {
    library.impl(
        Call::kName,
        torch::CppFunction::makeFromBoxedFunction<&call_recorded<own, described, traced>>());
    for (const auto& name : {forward_name(), backward_name()}) {
      library.impl(name.c_str(), torch::autograd::autogradNotImplementedFallback());
    }
  }

 private:
  static std::string forward_name() { return fmt::format("_{}_forward", Call::kName); }
  static std::string backward_name() { return fmt::format("{}_backward", Call::kName); }

  static Results own(Arguments& arguments) {
    return Call::read(arguments, Integers::known).compute();
  }

  static Results on_device(Arguments& arguments) {
    const at::NoGradGuard no_grad;
    return own(arguments);
  }

  static Results on_meta(Arguments& arguments) {
    return Call::read(arguments, Integers::may_be_symbols).empty();
  }

  /// A call, and the other arguments of its passes.
  struct Pass {
    Call call;
    std::optional<at::Tensor> seed;
    WantedGradients wanted;
  };

  static Pass read_pass(Arguments& arguments, Integers integers) {
    auto call = Call::read(arguments, integers);
    auto seed = arguments.next<std::optional<at::Tensor>>();
    return {std::move(call), std::move(seed), read_wanted(arguments)};
  }

  /// A call that was computed on stand-ins for its tensors, and recorded in a separate graph.
  struct Recorded {
    variable_list inputs;  // stand-ins of the tensors whose gradients are wanted
    Results results;
  };

  static Recorded record(const Pass& pass) {
    std::optional<SeededNumbers> numbers;
    if (pass.call.options.dropout() > 0.0) {
      numbers.emplace(pass.call.query.device(), seed_of(pass.seed));
    }
    const RecordingScope recording;
    auto call = pass.call;
    Recorded recorded;
    const auto tensors = differentiable_tensors(call);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i]) *tensors[i] = stand_in(*tensors[i], pass.wanted[i], recorded.inputs);
    }
    recorded.results = call.compute();
    return recorded;
  }

  static Results forward_on_device(Arguments& arguments) {
    auto results = record(read_pass(arguments, Integers::known)).results;
    for (auto& result : results) result = result.detach();
    return results;
  }

  static Results backward_on_device(Arguments& arguments) {
    Results of_results;
    for (size_t i = 0; i < std::size(Call::kResults); ++i) {
      of_results.push_back(arguments.next<std::optional<at::Tensor>>().value_or(at::Tensor()));
    }
    auto pass = read_pass(arguments, Integers::known);
    const auto recorded = record(pass);
    variable_list results, given;
    for (size_t i = 0; i < of_results.size(); ++i) {
      if (!of_results[i].defined()) continue;
      results.push_back(recorded.results[i]);
      given.push_back(of_results[i]);
    }
    const auto found =
        torch::autograd::grad(results, recorded.inputs, given, /*retain_graph=*/false,
                              /*create_graph=*/false, /*allow_unused=*/true);
    Results gradients(kGradientTensors);
    const auto tensors = differentiable_tensors(pass.call);
    auto next = found.begin();
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i] || !pass.wanted[i]) continue;
      const auto& gradient = *next++;
      gradients[i] =
          gradient.defined() ? laid_out_like(gradient, *tensors[i]) : at::zeros_like(*tensors[i]);
    }
    return gradients;
  }

  static Results backward_on_meta(Arguments& arguments) {
    for (size_t i = 0; i < std::size(Call::kResults); ++i) {
      arguments.next<std::optional<at::Tensor>>();
    }
    auto pass = read_pass(arguments, Integers::may_be_symbols);
    Results gradients(kGradientTensors);
    const auto tensors = differentiable_tensors(pass.call);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i] && pass.wanted[i]) gradients[i] = at::empty_like(*tensors[i]);
    }
    return gradients;
  }

  /// A traced call, recorded for autograd with an operator for each pass. `arguments` are those of
  /// the forward pass.
  struct Traced : public torch::autograd::Function<Traced> {
    static variable_list forward(AutogradContext* context, at::TensorList /*inputs*/,
                                 const Stack& arguments) {
      const at::AutoDispatchBelowADInplaceOrView below;
      context->set_materialize_grads(false);
      save_call(context, arguments, {});
      return call_operator(forward_name().c_str(), arguments);
    }

    static variable_list backward(AutogradContext* context, const variable_list& of_results) {
      auto stack = saved_call(context).arguments;
      Arguments arguments(stack, stack.size());
      auto call = Call::read(arguments, Integers::may_be_symbols);
      Stack given;
      for (const auto& gradient : of_results) {
        given.push_back(gradient.defined() ? c10::IValue(gradient) : c10::IValue());
      }
      stack.insert(stack.begin(), given.begin(), given.end());
      const auto found = call_operator(backward_name().c_str(), std::move(stack));
      variable_list gradients;
      const auto tensors = differentiable_tensors(call);
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i]) gradients.push_back(found[i]);
      }
      gradients.emplace_back();  // for arguments
      return gradients;
    }
  };

  static CallToRecord described(Arguments& arguments) {
    return to_record(Call::read(arguments, Integers::may_be_symbols));
  }

  static Results traced(const Stack& arguments, const CallToRecord& to_record) {
    Arguments to_read(arguments, arguments.size());
    auto call = arguments;
    call.emplace_back(traced_seed(to_record.dropout));
    call.emplace_back(requiring(Call::read(to_read, Integers::may_be_symbols)));
    return Traced::apply(at::TensorList(to_record.inputs), call);
  }
};

}  // namespace heed::detail
