#include "cpu/block/block.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "attend/dropout_key.h"
#include "attend/paths/paths.h"
#include "attend/score_mask.h"

namespace heed::detail::block_path {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

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
                                       const variable_list& result_gradients) {
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
  const auto attended = math_path::attend(own);
  variable_list results = {attended.output};
  if (attended.lse.defined()) results.push_back(attended.lse);
  const auto found = torch::autograd::grad(results, inputs, result_gradients,
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
                               const variable_list& result_gradients) {
  const auto of_lse = result_gradients.size() > 1 ? result_gradients[1] : Variable();
  const auto gradients = block_backward(problem, dropout_key, result,
                                        result_gradients[0].resolve_neg(), of_lse, wanted);
  return {gradients.query, gradients.key, gradients.value, gradients.bias, gradients.sinks};
}

/// -inf for a query without keys and sink.
at::Tensor lse_of(const BlockOutput& result) {
  return (result.largest - result.inverse_sum.log())
      .masked_fill_(result.inverse_sum.eq(0.0), kHiddenScore);
}

/// Returns {output}, or {output, lse} where it is wanted.
struct BlockAttention : public torch::autograd::Function<BlockAttention> {
  static variable_list forward(AutogradContext* context, at::TensorList /*inputs*/,
                               const Problem& problem, uint64_t dropout_key) {
    const auto result = block_forward(problem, dropout_key, BlockUse::training);
    variable_list saved = {result.output, result.largest, result.inverse_sum, result.output_rest};
    for (const auto member : kProblemTensors) saved.push_back(problem.*member);
    context->save_for_backward(std::move(saved));
    context->saved_data["call"] =
        c10::IValue::make_capsule(c10::make_intrusive<SavedCall>(problem, dropout_key));
    if (problem.wanted == Wanted::output_and_lse) return {result.output, lse_of(result)};
    return {result.output};
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
            ? differentiable_gradients(problem, wanted, gradients)
            : kernel_gradients(problem, call.dropout_key,
                               BlockOutput{saved[0], saved[1], saved[2], {}, saved[3]}, wanted,
                               gradients);
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
         (problem.wanted != Wanted::output_and_weights || weights_possible);
}

Attended attend(const Problem& problem) {
  if (problem.wanted == Wanted::output_and_weights) {
    const auto result = block_forward(problem, /*dropout_key=*/0, BlockUse::weights);
    return {result.output, result.weights};
  }
  const auto dropout_key =
      problem.part ? problem.part->dropout_key : draw_dropout_key(problem.dropout);
  const bool with_lse = problem.wanted == Wanted::output_and_lse;
  if (!problem.needs_grad()) {
    const bool for_backward = problem.part && problem.part->for_backward;
    const auto result = block_forward(problem, dropout_key,
                                      for_backward ? BlockUse::training : BlockUse::inference);
    return {result.output, {}, with_lse ? lse_of(result) : at::Tensor()};
  }
  const auto inputs = inputs_of(problem);
  const auto results = BlockAttention::apply(at::TensorList(inputs), problem, dropout_key);
  return {results[0], {}, with_lse ? results[1] : at::Tensor()};
}

Gradients gradients_of_part(const Problem& problem, const Attended& whole,
                            const at::Tensor& output_gradient, const WantedGradients& wanted) {
  TORCH_INTERNAL_ASSERT(problem.part);
  BlockOutput forward;
  forward.output = whole.output;
  // The weights are exp(score - lse).
  forward.largest = whole.lse.masked_fill(whole.lse.isinf(), 0.0).contiguous();
  forward.inverse_sum = at::ones_like(forward.largest);
  const auto found = block_backward(problem, problem.part->dropout_key, forward,
                                    output_gradient.resolve_neg(), {}, wanted);
  return {found.query, found.key, found.value, found.bias, found.sinks};
}

}  // namespace heed::detail::block_path
