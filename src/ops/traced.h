// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "ops/boxed.h"

/// How autograd records operators. Ordinary calls go to heed's functions, which record themselves.
/// When a compiler of Python traces a call, both of its passes must be operators.

namespace heed::detail {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Whether heed's function is to be called for the arguments on top of the stack. It records
/// itself, and under functorch it uses LibTorch's operators, which are recorded.
bool records_itself(const Stack& stack, size_t count);

/// The properties of a traced call that decide whether it is recorded.
struct CallToRecord {
  variable_list inputs;  // tensors that may require grad
  double dropout = 0.0;
};

/// Whether a traced call needs the operators of its passes, because it is recorded or has dropout.
bool needs_passes(const CallToRecord& call);

/// Draws a traced call's seed: int64 [1] on the CPU, or None without dropout. LibTorch's randint
/// draws it, because compilers know that two of its calls differ.
c10::IValue traced_seed(double dropout);
uint64_t seed_of(const std::optional<at::Tensor>& seed);

/// Keeps the arguments and `results` of a call for the backward pass.
void save_call(AutogradContext* context, Stack arguments, Results results);

struct SavedStack {
  Stack arguments;
  Results results;
};
SavedStack saved_call(AutogradContext* context);

/// The autograd kernel of an operator. `Own` calls heed's function. `Described` reads the
/// CallToRecord of a traced call, and `Traced` records such a call by the operators of its passes.
template <Results (*Own)(Arguments&), CallToRecord (*Described)(Arguments&),
          Results (*Traced)(const Stack&, const CallToRecord&)>
void call_recorded(const c10::OperatorHandle& op, Stack* stack) {
  const auto count = argument_count(op);
  Arguments arguments(*stack, count);
  if (records_itself(*stack, count)) return replace_arguments(count, Own(arguments), *stack);
  const auto to_record = Described(arguments);
  if (!needs_passes(to_record)) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return op.callBoxed(*stack);
  }
  const Stack call(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  replace_arguments(count, Traced(call, to_record), *stack);
}

/// Gives a gradient the dtype and strides of at::empty_like(tensor), which the operator's meta
/// kernel promises.
at::Tensor laid_out_like(const at::Tensor& gradient, const at::Tensor& tensor);

/// An uninitialized contiguous tensor with the sizes of `tensor`, which may be symbolic.
at::Tensor empty_dense(const at::Tensor& tensor);

bool has_symbolic_sizes(const std::vector<at::Tensor>& tensors);

}  // namespace heed::detail
