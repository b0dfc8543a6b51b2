#include "attend/paths/recorded.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/map_slices.h"

namespace heed::detail {

namespace {

/// Pointers to all tensors of a problem. Autograd records none whose keys are in pages.
std::vector<at::Tensor*> tensors_of(Problem& problem) {
  std::vector<at::Tensor*> tensors;
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

/// The parts of a call, other than tensors, that the backward pass needs. Autograd keeps the
/// tensors itself, so that it notices changes in place.
struct SavedCall : torch::CustomClassHolder {
  SavedCall(Problem call, size_t results, c10::intrusive_ptr<torch::CustomClassHolder> rest)
      : problem(std::move(call)), results(results), rest(std::move(rest)) {}
  Problem problem;
  size_t results;
  c10::intrusive_ptr<torch::CustomClassHolder> rest;
};

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
  auto call = c10::make_intrusive<SavedCall>(problem, results.size(), std::move(rest));
  auto saved = std::move(results);
  for (auto* tensor : tensors_of(call->problem)) {
    saved.push_back(std::exchange(*tensor, at::Tensor()));
  }
  context->save_for_backward(std::move(saved));
  context->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
}

SavedProblem saved_problem(AutogradContext* context) {
  const auto saved = context->get_saved_variables();
  const auto capsule = context->saved_data["call"].toCapsule();
  const auto& call = static_cast<const SavedCall&>(*capsule);
  const auto results = static_cast<std::ptrdiff_t>(call.results);
  SavedProblem found{call.problem, {saved.begin(), saved.begin() + results}, call.rest};
  auto next = saved.begin() + results;
  for (auto* tensor : tensors_of(found.problem)) *tensor = *next++;
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

Gradients gradients_of_slices(const variable_list& of_results,
                              const std::function<Gradients(const variable_list&)>& compute) {
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
