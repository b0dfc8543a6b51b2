#include "cpu/block/block.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <mutex>
#include <utility>

#include "attend/paths/paths.h"

namespace heed::detail::block_path {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// One draw of LibTorch's generator a call, so that torch::manual_seed rules.
uint64_t draw_key(double dropout) {
  if (dropout == 0.0) return 0;
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

/// What a call keeps for its backward pass beside tensors, which autograd keeps.
struct SavedCall : torch::CustomClassHolder {
  SavedCall(Problem call, uint64_t dropout_key)
      : problem(std::move(call)), dropout_key(dropout_key) {
    for (const auto member : kProblemTensors) problem.*member = at::Tensor();
  }
  Problem problem;
  uint64_t dropout_key;
};

/// Those of the tensors that autograd differentiates by, in the order of kProblemTensors.
variable_list inputs_of(const Problem& problem) {
  variable_list inputs;
  for (size_t i = 0; i < kGradientTensors; ++i) {
    const auto& tensor = problem.*kProblemTensors[i];
    if (tensor.defined()) inputs.push_back(tensor);
  }
  return inputs;
}

/// Gradients that can be differentiated again: those of the same attention by operators, in O(L *
/// S) memory. Those of tensors that are not wanted are undefined.
variable_list differentiable_gradients(const Problem& problem, const WantedGradients& wanted,
                                       const Variable& output_gradient) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      problem.dropout == 0.0,
      "attend: dropout has no second derivative: its draws are made for one backward pass");
  auto own = problem;
  variable_list inputs;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    // A tensor may stand in two places, whose gradients are not the same.
    auto& tensor = own.*kProblemTensors[i];
    tensor = tensor.view_as(tensor);
    inputs.push_back(tensor);
  }
  const auto output = math_path::attend(own).output;
  const auto found = torch::autograd::grad({output}, inputs, {output_gradient},
                                           /*retain_graph=*/true, /*create_graph=*/true);
  variable_list gradients(wanted.size());
  auto next = found.begin();
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i]) gradients[i] = *next++;
  }
  return gradients;
}

variable_list kernel_gradients(const Problem& problem, uint64_t dropout_key,
                               const BlockOutput& result, const WantedGradients& wanted,
                               const Variable& output_gradient) {
  const auto gradients =
      block_backward(problem, dropout_key, result, output_gradient.resolve_neg(), wanted);
  return {gradients.query, gradients.key, gradients.value, gradients.bias, gradients.sinks};
}

struct BlockAttention : public torch::autograd::Function<BlockAttention> {
  static Variable forward(AutogradContext* context, at::TensorList /*inputs*/,
                          const Problem& problem, uint64_t dropout_key) {
    const auto result = block_forward(problem, dropout_key, BlockUse::training);
    variable_list saved = {result.output, result.largest, result.inverse_sum, result.output_rest};
    for (const auto member : kProblemTensors) saved.push_back(problem.*member);
    context->save_for_backward(std::move(saved));
    context->saved_data["call"] =
        c10::IValue::make_capsule(c10::make_intrusive<SavedCall>(problem, dropout_key));
    return result.output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto capsule = context->saved_data["call"].toCapsule();
    const auto& call = static_cast<const SavedCall&>(*capsule);
    auto problem = call.problem;
    auto next = saved.begin() + 4;
    for (const auto member : kProblemTensors) problem.*member = *next++;
    WantedGradients wanted{};
    size_t defined = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if ((problem.*kProblemTensors[i]).defined()) wanted[i] = context->needs_input_grad(defined++);
    }
    const auto computed =
        at::GradMode::is_enabled()
            ? differentiable_gradients(problem, wanted, gradients[0])
            : kernel_gradients(problem, call.dropout_key,
                               BlockOutput{saved[0], saved[1], saved[2], {}, saved[3]}, wanted,
                               gradients[0]);
    variable_list result;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if ((problem.*kProblemTensors[i]).defined()) result.push_back(computed[i]);
    }
    result.resize(result.size() + 2);  // of the problem and the key
    return result;
  }
};

}  // namespace

bool takes(const Problem& problem) {
  const bool weights_possible = !problem.needs_grad() && problem.dropout == 0.0;
  return problem.query.is_cpu() && !problem.is_empty() && !problem.has_tangent() &&
         (problem.wanted == Wanted::output || weights_possible);
}

Attended attend(const Problem& problem) {
  if (problem.wanted == Wanted::output_and_weights) {
    const auto result = block_forward(problem, /*dropout_key=*/0, BlockUse::weights);
    return {result.output, result.weights};
  }
  const auto dropout_key = draw_key(problem.dropout);
  if (!problem.needs_grad()) {
    return {block_forward(problem, dropout_key, BlockUse::inference).output, {}};
  }
  const auto inputs = inputs_of(problem);
  return {BlockAttention::apply(at::TensorList(inputs), problem, dropout_key), {}};
}

}  // namespace heed::detail::block_path
