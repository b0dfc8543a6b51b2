#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "ops/boxed.h"

/// How operators are recorded by autograd. Ordinary calls go to heed's functions, which record
/// themselves. A compiler of Python traces calls instead: it must find operators in both passes.

namespace heed::detail {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Whether to call heed's function: it records itself or, for functorch, LibTorch's operators.
bool records_itself(const Stack& stack, size_t count);

/// What tells whether a traced call is recorded.
struct CallToRecord {
  variable_list inputs;  // gradients are wanted for those that require them
  double dropout = 0.0;
};

/// Whether a traced call records or draws something.
bool needs_passes(const CallToRecord& call);

/// A seed for a call that is traced: int64 [1] on the CPU, or none without dropout. LibTorch's
/// operator makes it, because compilers know that two of its calls differ.
c10::IValue traced_seed(double dropout);
uint64_t seed_of(const std::optional<at::Tensor>& seed);

/// Keeps the arguments of a call, and `results` of it, for the backward pass.
void save_call(AutogradContext* context, Stack arguments, Results results);

struct SavedStack {
  Stack arguments;
  Results results;
};
SavedStack saved_call(AutogradContext* context);

/// A kernel for autograd of an operator whose heed function is `Own`, and whose recorded operators
/// are `Traced`.
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

/// A gradient in the strides that the fake tensor of the operator has: those of empty_like.
at::Tensor laid_out_like(const at::Tensor& gradient, const at::Tensor& tensor);

/// Without memory, one row after the other.
at::Tensor empty_dense(const at::Tensor& tensor);

bool has_symbolic_sizes(const std::vector<at::Tensor>& tensors);

}  // namespace heed::detail
