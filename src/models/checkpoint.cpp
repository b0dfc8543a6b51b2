#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <heed/autocast.h>
#include <heed/checkpoint.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/random_state.h"

namespace heed {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using Function = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// Autocast keeps what it makes of weights for their next use. What it makes here must not be kept:
/// it has no graph at first, and when computed anew outlives the step of the optimizer.
class WithoutAutocastCache {
 public:
  WithoutAutocastCache() { at::autocast::set_autocast_cache_enabled(false); }
  ~WithoutAutocastCache() { at::autocast::set_autocast_cache_enabled(enabled_); }
  WithoutAutocastCache(const WithoutAutocastCache&) = delete;
  WithoutAutocastCache& operator=(const WithoutAutocastCache&) = delete;

 private:
  const bool enabled_ = at::autocast::is_autocast_cache_enabled();
};

/// What autocast computes products in; float32 where it is off.
at::ScalarType autocast_dtype_of(at::DeviceType device) {
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                   : at::kFloat;
}

struct Recomputation : torch::CustomClassHolder {
  Recomputation(Function function, const variable_list& inputs)
      : function(std::move(function)),
        num_inputs(inputs.size()),
        random(inputs[0].device()),
        autocast_dtype(autocast_dtype_of(inputs[0].device().type())) {}

  at::Tensor run(const variable_list& inputs) const {
    const WithoutAutocastCache without_cache;
    return function(inputs);
  }

  at::Tensor run_anew(const variable_list& inputs) const {
    const Autocast as_before(inputs[0].device().type(), autocast_dtype);
    return random.replay([&] { return run(inputs); });
  }

  Function function;
  size_t num_inputs;
  detail::RandomState random;
  at::ScalarType autocast_dtype;
  at::Tensor output;  // of the first run, until it is taken
};

/// Copies outside the graph that gradients may be asked for.
variable_list leaves(const variable_list& tensors, size_t count) {
  variable_list result;
  result.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    result.push_back(tensors[i].detach().requires_grad_(tensors[i].requires_grad()));
  }
  return result;
}

/// The leaves, other than `inputs`, that the graph of `output` leads to: parameters. The graph's
/// own nodes were made from `first_node` on.
variable_list parameters_of(const at::Tensor& output, const variable_list& inputs,
                            uint64_t first_node) {
  variable_list parameters;
  std::unordered_set<torch::autograd::Node*> seen;
  // Nothing but a graph keeps the nodes of leaves, and a graph need not lead to them.
  std::vector<torch::autograd::Edge> kept;
  for (const auto& input : inputs) {
    if (!input.requires_grad()) continue;
    kept.push_back(torch::autograd::impl::gradient_edge(input));
    seen.insert(kept.back().function.get());
  }
  std::vector<torch::autograd::Node*> left;
  const auto visit = [&](torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) left.push_back(node);
  };
  if (output.requires_grad()) {
    kept.push_back(torch::autograd::impl::gradient_edge(output));
    visit(kept.back().function.get());
  }
  while (!left.empty()) {
    auto* node = left.back();
    left.pop_back();
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      parameters.push_back(leaf->variable);
      continue;
    }
    HEED_CHECK(
        node->sequence_nr() >= first_node,
        "checkpoint: function must get every tensor with a history as one of inputs; it uses "
        "the result of {}",
        node->name());
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return parameters;
}

struct Checkpoint : public torch::autograd::Function<Checkpoint> {
  /// `tensors` are the inputs, then the parameters; `output` is what they give.
  static Variable forward(AutogradContext* context, at::TensorList tensors,
                          const c10::intrusive_ptr<Recomputation>& recomputation) {
    context->save_for_backward(tensors.vec());
    context->saved_data["recomputation"] = c10::IValue::make_capsule(recomputation);
    return std::exchange(recomputation->output, {});
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                                "checkpoint: there is no second derivative; compute it without");
    const auto capsule = context->saved_data["recomputation"].toCapsule();
    const auto& recomputation = static_cast<const Recomputation&>(*capsule);
    const auto saved = context->get_saved_variables();
    const auto inputs = leaves(saved, recomputation.num_inputs);
    variable_list sources;
    std::vector<size_t> places;
    for (size_t i = 0; i < saved.size(); ++i) {
      const auto& source = i < inputs.size() ? inputs[i] : saved[i];
      if (!source.requires_grad()) continue;
      sources.push_back(source);
      places.push_back(i);
    }
    const at::AutoGradMode with_grad(true);
    const auto output = recomputation.run_anew(inputs);
    const auto found =
        torch::autograd::grad({output}, sources, {gradients[0]}, /*retain_graph=*/false,
                              /*create_graph=*/false, /*allow_unused=*/true);
    variable_list result(saved.size() + 1);  // and none for the recomputation
    for (size_t i = 0; i < places.size(); ++i) result[places[i]] = found[i];
    return result;
  }
};

}  // namespace

at::Tensor checkpoint_function(Function function, const std::vector<at::Tensor>& inputs) {
  HEED_CHECK(!inputs.empty(), "checkpoint: inputs size (0) must be at least 1");
  if (!at::GradMode::is_enabled()) return function(inputs);
  const auto recomputation = c10::make_intrusive<Recomputation>(std::move(function), inputs);
  auto tensors = inputs;
  {
    // With a graph, which is dropped at once: it tells the parameters, and attention may take
    // another path for inference, whose rounding is not that of the recomputation.
    const auto own = leaves(inputs, inputs.size());
    const auto first_node = at::sequence_number::peek();
    const auto output = recomputation->run(own);
    const auto parameters = parameters_of(output, own, first_node);
    tensors.insert(tensors.end(), parameters.begin(), parameters.end());
    recomputation->output = output.detach();
  }
  return Checkpoint::apply(at::TensorList(tensors), recomputation);
}

}  // namespace heed
