#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <functional>

#include "attend/paths/paths.h"

/// What autograd Functions of paths have in common: their inputs are those tensors of a problem
/// that autograd differentiates by.

namespace heed::detail {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The defined ones of the tensors that may carry gradients, in the order of kProblemTensors.
variable_list inputs_of(const Problem& problem);

/// Keeps a problem for the backward pass, and `results` beside it; `rest` is what is no tensor.
void save_problem(AutogradContext* context, const Problem& problem, variable_list results,
                  c10::intrusive_ptr<torch::CustomClassHolder> rest = {});

struct SavedProblem {
  Problem problem;
  variable_list results;
  c10::intrusive_ptr<torch::CustomClassHolder> rest;
};
SavedProblem saved_problem(AutogradContext* context);

WantedGradients wanted_gradients(AutogradContext* context, const Problem& problem);

/// Returns the gradients that `compute` finds for those of results, slice by slice where they are
/// batched.
Gradients gradients_of_slices(const variable_list& of_results,
                              const std::function<Gradients(const variable_list&)>& compute);

/// What `backward` returns for gradients in the order of kProblemTensors: those of `inputs_of`, and
/// none for the `others` arguments of `forward`.
variable_list gradients_of_inputs(const Problem& problem, const Gradients& gradients,
                                  size_t others);

}  // namespace heed::detail
