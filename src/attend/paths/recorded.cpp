// SPDX-License-Identifier: BSD-3-Clause
#include "attend/paths/recorded.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/map_slices.h"

namespace heed::detail {

namespace {

/// Pointers to all tensors of a problem and its results. Autograd records none whose keys are in
/// pages. It keeps the tensors itself, so that it notices changes in place.
std::vector<at::Tensor*> tensors_of(SavedProblem& saved) {
  auto& problem = saved.problem;
  std::vector<at::Tensor*> tensors;
  for (auto& result : saved.results) tensors.push_back(&result);
  for (const auto member : kProblemTensors) tensors.push_back(&(problem.*member));
  if (auto* packed = std::get_if<PackedSequences>(&problem.sequences)) {
    tensors.insert(tensors.end(),
                   {&packed->query_offsets, &packed->key_offsets, &packed->key_lengths});
  }
  if (auto* padded = std::get_if<PaddedSequences>(&problem.sequences)) {
    tensors.insert(tensors.end(), {&padded->query_lengths, &padded->key_lengths});
  }
  return tensors;
}

}  // namespace

variable_list inputs_of(const Problem& problem) {
  variable_list inputs;
  for (size_t i = 0; i < kGradientTensors; ++i) {
    const auto& tensor = problem.*kProblemTensors[i];
    if (tensor.defined()) inputs.push_back(tensor);
  }
  return inputs;
}

void save_problem(AutogradContext* context, const Problem& problem, variable_list results,
                  c10::intrusive_ptr<torch::CustomClassHolder> rest) {
  SavedProblem saved{problem, std::move(results), std::move(rest)};
  variable_list tensors;
  for (auto* tensor : tensors_of(saved)) tensors.push_back(std::exchange(*tensor, at::Tensor()));
  context->save_for_backward(std::move(tensors));
  context->saved_data["call"] =
      c10::IValue::make_capsule(c10::make_intrusive<Held<SavedProblem>>(std::move(saved)));
}

SavedProblem saved_problem(AutogradContext* context) {
  const auto capsule = context->saved_data["call"].toCapsule();
  auto found = static_cast<const Held<SavedProblem>&>(*capsule).value;
  const auto saved = context->get_saved_variables();
  auto next = saved.begin();
  for (auto* tensor : tensors_of(found)) *tensor = *next++;
  return found;
}

WantedGradients wanted_gradients(AutogradContext* context, const Problem& problem) {
  WantedGradients wanted{};
  size_t defined = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if ((problem.*kProblemTensors[i]).defined()) wanted[i] = context->needs_input_grad(defined++);
  }
  return wanted;
}

Gradients recorded_gradients(const Problem& problem, const WantedGradients& wanted,
                             const variable_list& of_results,
                             const std::function<Gradients(const variable_list&)>& compute) {
  if (at::GradMode::is_enabled()) {
    return math_path::differentiable_gradients(problem, wanted, of_results);
  }
  const auto found = map_slices(of_results, [&](const variable_list& slices) {
    const auto gradients = compute(slices);
    return variable_list(gradients.begin(), gradients.end());
  });
  Gradients gradients;
  std::copy(found.begin(), found.end(), gradients.begin());
  return gradients;
}

variable_list gradients_of_inputs(const Problem& problem, const Gradients& gradients,
                                  size_t others) {
  variable_list result;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if ((problem.*kProblemTensors[i]).defined()) result.push_back(gradients[i]);
  }
  result.resize(result.size() + others);
  return result;
}

}  // namespace heed::detail
