#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "ops/boxed.h"

/// How operators are recorded by autograd. Ordinary calls go to heed's functions, which record
/// themselves. A compiler of Python traces calls instead: it must find operators in both passes.

namespace heed::detail {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// How the kernel for autograd goes on.
enum class Recording {
  own,     ///< call heed's function: it records itself or, for functorch, LibTorch's operators
  none,    ///< nothing is recorded: call the operator of the device
  traced,  ///< record operators
};

/// `differentiable`: the arguments that gradients are wanted for if they require them.
Recording recording_of(const Stack& stack, size_t count,
                       const std::vector<at::Tensor>& differentiable);

/// Keeps the arguments of a call, and `results` of it, for the backward pass.
void save_call(AutogradContext* context, Stack arguments, Results results);

struct SavedStack {
  Stack arguments;
  Results results;
};
SavedStack saved_call(AutogradContext* context);

/// A kernel for autograd of an operator whose heed function is `own`, and whose recorded operators
/// are `traced`. Both read the arguments of the operator.
template <Results (*own)(Arguments&), variable_list (*differentiable)(Arguments&),
          Results (*traced)(const Stack&, const variable_list&)>
void call_recorded(const c10::OperatorHandle& op, Stack* stack) {
  const auto count = argument_count(op);
  Arguments arguments(*stack, count);
  const auto inputs = differentiable(arguments);
  switch (recording_of(*stack, count, inputs)) {
    case Recording::own: {
      Arguments again(*stack, count);
      return replace_arguments(count, own(again), *stack);
    }
    case Recording::none: {
      const at::AutoDispatchBelowADInplaceOrView below;
      return op.callBoxed(*stack);
    }
    case Recording::traced: {
      const Stack call(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
      return replace_arguments(count, traced(call, inputs), *stack);
    }
  }
}

/// A gradient in the strides that the fake tensor of the operator has: those of empty_like.
at::Tensor laid_out_like(const at::Tensor& gradient, const at::Tensor& tensor);

bool has_symbolic_sizes(const std::vector<at::Tensor>& tensors);

}  // namespace heed::detail
