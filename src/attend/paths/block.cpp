#include "cpu/block/block.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/custom_function.h>

#include <mutex>

#include "attend/paths/paths.h"

namespace heed::detail {

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

void save_options(AutogradContext* context, const Problem& problem, uint64_t dropout_key) {
  auto& data = context->saved_data;
  data["causal"] = problem.causal;
  data["window"] = problem.window;
  data["dropout"] = problem.dropout;
  data["scale"] = problem.scale;
  data["softcap"] = problem.softcap;
  data["dropout_key"] = static_cast<int64_t>(dropout_key);
}

Problem load_problem(AutogradContext* context, const variable_list& tensors) {
  auto& data = context->saved_data;
  return {tensors[0],
          tensors[1],
          tensors[2],
          tensors[3],
          tensors[4],
          data["causal"].toBool(),
          data["window"].toOptional<int64_t>(),
          data["dropout"].toDouble(),
          data["scale"].toDouble(),
          data["softcap"].toDouble(),
          tensors[5],
          tensors[6]};
}

std::optional<Variable> if_defined(const Variable& variable) {
  return variable.defined() ? std::optional<Variable>(variable) : std::nullopt;
}

/// The backward pass as a function of its own, so that differentiating it is an error and not a
/// silent zero.
struct BlockAttentionBackward : public torch::autograd::Function<BlockAttentionBackward> {
  /// Returns the wanted gradients alone. The problem's tensors are given once more because autograd
  /// sees a function's arguments only.
  static variable_list forward(AutogradContext* /*context*/, const Variable& output_gradient,
                               const Variable& /*query*/, const Variable& /*key*/,
                               const Variable& /*value*/, const std::optional<Variable>& /*bias*/,
                               const std::optional<Variable>& /*sinks*/, const Problem& problem,
                               uint64_t dropout_key, const BlockOutput& result,
                               const WantedGradients& wanted) {
    const auto gradients = block_backward(problem, dropout_key, result, output_gradient, wanted);
    variable_list defined;
    for (const auto& gradient :
         {gradients.query, gradients.key, gradients.value, gradients.bias, gradients.sinks}) {
      if (gradient.defined()) defined.push_back(gradient);
    }
    return defined;
  }

  static variable_list backward(AutogradContext* /*context*/, const variable_list& /*gradients*/) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "attend: the block path has no second derivative; attend_with_weights has one");
  }
};

struct BlockAttention : public torch::autograd::Function<BlockAttention> {
  static Variable forward(AutogradContext* context, const Variable& query, const Variable& key,
                          const Variable& value, const std::optional<Variable>& bias,
                          const std::optional<Variable>& sinks, const Problem& problem,
                          uint64_t dropout_key) {
    const auto result = block_forward(problem, dropout_key, BlockUse::training);
    context->save_for_backward({query, key, value, problem.mask, bias.value_or(Variable()),
                                problem.alibi_slopes, sinks.value_or(Variable()), result.output,
                                result.largest, result.inverse_sum});
    save_options(context, problem, dropout_key);
    return result.output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto tensors = context->get_saved_variables();
    const auto problem = load_problem(context, tensors);
    const auto dropout_key = static_cast<uint64_t>(context->saved_data["dropout_key"].toInt());
    WantedGradients wanted{};
    const auto& inputs = {problem.query, problem.key, problem.value, problem.bias, problem.sinks};
    size_t place = 0, defined = 0;  // autograd counts the inputs that are defined
    for (const auto& input : inputs) {
      if (input.defined()) wanted[place] = context->needs_input_grad(defined++);
      ++place;
    }
    const auto computed = BlockAttentionBackward::apply(
        gradients[0], problem.query, problem.key, problem.value, if_defined(problem.bias),
        if_defined(problem.sinks), problem, dropout_key,
        BlockOutput{tensors[7], tensors[8], tensors[9], {}}, wanted);
    variable_list result(7);  // of query, key, value, bias, sinks, the options and the key
    auto next = computed.begin();
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i]) result[i] = *next++;
    }
    return result;
  }
};

}  // namespace

std::tuple<at::Tensor, at::Tensor> attend_block_with_weights(const Problem& problem) {
  const auto result = block_forward(problem, /*dropout_key=*/0, BlockUse::weights);
  return {result.output, result.weights};
}

at::Tensor attend_block(const Problem& problem) {
  const auto dropout_key = draw_key(problem.dropout);
  if (!problem.needs_grad()) {
    return block_forward(problem, dropout_key, BlockUse::inference).output;
  }
  return BlockAttention::apply(problem.query, problem.key, problem.value, if_defined(problem.bias),
                               if_defined(problem.sinks), problem, dropout_key);
}

}  // namespace heed::detail
