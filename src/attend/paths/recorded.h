#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <functional>

#include "attend/paths/paths.h"

/// Code that the autograd Functions of paths share. Their inputs are the tensors of a problem that
/// may carry gradients.

namespace heed::detail {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The tensors of a problem that may carry gradients and are defined, in the order of
/// kProblemTensors.
variable_list inputs_of(const Problem& problem);

/// Keeps a problem and `results` for the backward pass. `rest` is an object that holds anything
/// else that the path keeps.
void save_problem(AutogradContext* context, const Problem& problem, variable_list results,
                  c10::intrusive_ptr<torch::CustomClassHolder> rest = {});

struct SavedProblem {
  Problem problem;
  variable_list results;
  c10::intrusive_ptr<torch::CustomClassHolder> rest;
};
SavedProblem saved_problem(AutogradContext* context);

WantedGradients wanted_gradients(AutogradContext* context, const Problem& problem);

/// Returns compute(of_results), the gradients of the inputs from those of the results. If a vmap
/// has batched these, it computes slice by slice.
Gradients gradients_of_slices(const variable_list& of_results,
                              const std::function<Gradients(const variable_list&)>& compute);

/// The return value of a Function's `backward`: the gradients of `inputs_of`, and undefined ones
/// for the `others` arguments of `forward`. `gradients` are in the order of kProblemTensors.
variable_list gradients_of_inputs(const Problem& problem, const Gradients& gradients,
                                  size_t others);

}  // namespace heed::detail
