// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <utility>

#include "attend/paths/paths.h"
#include "cpu/layers/function.h"

/// Code that the autograd Functions of paths share. Their inputs are the tensors of a problem that
/// may carry gradients.

namespace heed::detail {

/// An object that autograd keeps for the backward pass.
template <typename T>
struct Held : torch::CustomClassHolder {
  explicit Held(T given) : value(std::move(given)) {}
  T value;
};

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

/// The gradients of the inputs from those of the results: compute(of_results), slice by slice if a
/// vmap has batched these. If the gradients are to be differentiable, the path math computes them.
Gradients recorded_gradients(const Problem& problem, const WantedGradients& wanted,
                             const variable_list& of_results,
                             const std::function<Gradients(const variable_list&)>& compute);

/// The return value of a Function's `backward`: the gradients of `inputs_of`, and undefined ones
/// for the `others` arguments of `forward`. `gradients` are in the order of kProblemTensors.
variable_list gradients_of_inputs(const Problem& problem, const Gradients& gradients,
                                  size_t others);

}  // namespace heed::detail
