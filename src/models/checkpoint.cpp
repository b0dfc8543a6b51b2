// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <heed/autocast.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/random_state.h"
#include "core/watched.h"
#include "models/checkpoint.h"

namespace heed {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;
using torch::autograd::impl::gradient_edge;
using Function = std::function<variable_list(const variable_list&)>;

constexpr auto kCheckpoint = "checkpoint";

/// The dtype in which autocast computes products; float32 where it is off.
at::ScalarType autocast_dtype_of(at::DeviceType device) {
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                   : at::kFloat;
}

at::Device device_of(const variable_list& tensors) {
  const auto defined = std::find_if(tensors.begin(), tensors.end(),
                                    [](const auto& tensor) { return tensor.defined(); });
  return defined == tensors.end() ? at::Device(at::kCPU) : defined->device();
}

/// The state that the backward pass needs besides the saved tensors.
struct Recomputation : torch::CustomClassHolder {
  Recomputation(const char* caller, Function function, const variable_list& inputs,
                std::vector<const char*> names)
      : caller(caller),
        function(std::move(function)),
        names(std::move(names)),
        device(device_of(inputs)),
        random(device),
        autocast_dtype(autocast_dtype_of(device.type())) {
    for (const auto& input : inputs) is_given.push_back(input.defined());
  }

  /// Calls the function. `given` are the inputs that are defined.
  variable_list run(const variable_list& given) const {
    // Autocast's cache of converted weights is off: a copy from the first run would belong to a
    // graph that is dropped, and one from the second run would outlive the optimizer's step.
    const bool caches = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_cache_enabled(false);
    const auto restore =
        c10::make_scope_exit([&] { at::autocast::set_autocast_cache_enabled(caches); });
    variable_list inputs(is_given.size());
    auto next = given.begin();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (is_given[i]) inputs[i] = *next++;
    }
    return function(inputs);
  }

  variable_list run_anew(const variable_list& given) const {
    const Autocast as_before(device.type(), autocast_dtype);
    return random.replay([&] { return run(given); });
  }

  /// The name of tensor n of the watched ones: first come the inputs that are defined, then the
  /// parameters.
  std::string name_of(size_t n) const {
    const auto first = n;
    for (size_t i = 0; i < is_given.size(); ++i) {
      if (!is_given[i] || n-- > 0) continue;
      return names.empty() ? fmt::format("inputs[{}]", i) : names[i];
    }
    const auto parameter = watched[first].tensor();
    return parameter.defined() ? "a parameter " + c10::str(parameter.sizes()) : "a parameter ";
  }

  void check_unchanged() const {
    for (size_t i = 0; i < watched.size(); ++i) {
      HEED_CHECK(watched[i].is_unchanged(),
                 "{}: {} must not be changed in place before the backward pass, which computes "
                 "with it again",
                 caller, name_of(i));
    }
  }

  const char* caller;
  Function function;
  std::vector<const char*> names;  // of the inputs; if empty, errors give their numbers
  at::Device device;
  detail::RandomState random;
  at::ScalarType autocast_dtype;
  std::vector<bool> is_given;            // which inputs are defined
  std::vector<detail::Watched> watched;  // tensors that both runs of the function read
  std::vector<size_t> recorded;          // the results that have a graph
  variable_list outputs;  // the recorded results of the first run, until they are taken
};

/// The first `count` tensors, detached from their graph: leaves for which gradients can be found.
variable_list leaves(const variable_list& tensors, size_t count) {
  return c10::fmap(at::TensorList(tensors).slice(0, count), [](const at::Tensor& tensor) {
    return tensor.detach().requires_grad_(tensor.requires_grad());
  });
}

bool is_leaf(const Node* node) {
  return dynamic_cast<const torch::autograd::AccumulateGrad*>(node) != nullptr;
}

/// Calls visit(edge) for each edge to a leaf in the graphs that begin with the nodes `left`, and
/// enter(node) for each other node, before its edges.
template <typename Visit, typename Enter>
void visit_leaf_edges(std::vector<Node*> left, const Visit& visit, const Enter& enter) {
  std::unordered_set<Node*> seen(left.begin(), left.end());
  while (!left.empty()) {
    auto* node = left.back();
    left.pop_back();
    enter(*node);
    for (auto& edge : node->next_edges()) {
      auto* next = edge.function.get();
      if (next == nullptr) continue;
      if (is_leaf(next)) {
        visit(edge);
      } else if (seen.insert(next).second) {
        left.push_back(next);
      }
    }
  }
}

/// The parameters: the leaves, other than `inputs`, of the graphs of `results`. Throws if a graph
/// has a node that was made before `first_node`, and so not by the function.
variable_list parameters_of(const variable_list& results, const variable_list& inputs,
                            uint64_t first_node) {
  variable_list parameters;
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& input : inputs) known.insert(input.unsafeGetTensorImpl());
  const auto add = [&](const Edge& edge) {
    const auto& leaf = dynamic_cast<torch::autograd::AccumulateGrad&>(*edge.function).variable;
    if (known.insert(leaf.unsafeGetTensorImpl()).second) parameters.push_back(leaf);
  };
  std::vector<Node*> roots;
  for (const auto& result : results) {
    const auto edge = gradient_edge(result);
    if (is_leaf(edge.function.get())) {
      add(edge);
    } else {
      roots.push_back(edge.function.get());
    }
  }
  visit_leaf_edges(std::move(roots), add, [&](const Node& node) {
    HEED_CHECK(node.sequence_nr() >= first_node,
               "{}: function must get every tensor with a history as one of inputs; it uses "
               "the result of {}",
               kCheckpoint, node.name());
  });
  return parameters;
}

/// Leaves that replace parameters in the graph of the second run. Gradients for the parameters
/// themselves would run their hooks, which must run once, on the sum of all gradients of the
/// backward pass.
using StandIns = std::unordered_map<const Node*, at::Tensor>;  // by the parameter's accumulator

void let_stand_in(const StandIns& stand_ins, variable_list& results) {
  std::vector<Node*> roots;
  for (auto& result : results) {
    const auto edge = gradient_edge(result);
    const auto found = stand_ins.find(edge.function.get());
    if (found != stand_ins.end()) {
      result = found->second;
    } else if (!is_leaf(edge.function.get())) {
      roots.push_back(edge.function.get());
    }
  }
  const auto redirect = [&](Edge& edge) {
    const auto found = stand_ins.find(edge.function.get());
    if (found != stand_ins.end()) edge = gradient_edge(found->second);
  };
  visit_leaf_edges(std::move(roots), redirect, [](const Node& /*node*/) {});
}

struct Checkpoint : public torch::autograd::Function<Checkpoint> {
  /// `tensors` are the inputs that are defined, then the parameters.
  static variable_list forward(AutogradContext* context, at::TensorList tensors,
                               const c10::intrusive_ptr<Recomputation>& recomputation) {
    context->save_for_backward(tensors.vec());
    context->saved_data["recomputation"] = c10::IValue::make_capsule(recomputation);
    context->set_materialize_grads(false);
    return std::exchange(recomputation->outputs, {});
  }

  static variable_list backward(AutogradContext* context, const variable_list& of_outputs) {
    const auto capsule = context->saved_data["recomputation"].toCapsule();
    const auto& recomputation = static_cast<const Recomputation&>(*capsule);
    TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(), kCheckpoint,
                                ": there is no second derivative; compute it without");
    recomputation.check_unchanged();
    const auto saved = context->get_saved_variables();
    const auto num_inputs = static_cast<size_t>(
        std::count(recomputation.is_given.begin(), recomputation.is_given.end(), true));
    const auto inputs = leaves(saved, num_inputs);
    StandIns stand_ins;
    variable_list sources;
    std::vector<size_t> places;
    for (size_t i = 0; i < saved.size(); ++i) {
      if (!saved[i].requires_grad() || !context->needs_input_grad(i)) continue;
      sources.push_back(i < num_inputs ? inputs[i] : saved[i].detach().requires_grad_());
      places.push_back(i);
      if (i < num_inputs) continue;
      stand_ins.emplace(gradient_edge(saved[i]).function.get(), sources.back());
    }
    variable_list result(saved.size() + 1);  // the last one, of the recomputation, is undefined
    const auto found = gradients(recomputation, inputs, of_outputs, stand_ins, sources);
    for (size_t i = 0; i < found.size(); ++i) result[places[i]] = found[i];
    return result;
  }

 private:
  static variable_list gradients(const Recomputation& recomputation, const variable_list& inputs,
                                 const variable_list& of_outputs, const StandIns& stand_ins,
                                 const variable_list& sources) {
    const at::AutoGradMode with_grad(true);
    const auto results = recomputation.run_anew(inputs);
    variable_list outputs, of_these;
    for (size_t n = 0; n < of_outputs.size(); ++n) {
      const auto place = recomputation.recorded[n];
      HEED_CHECK(place < results.size(), "{}: function must return as many results again ({})",
                 recomputation.caller, results.size());
      if (!of_outputs[n].defined() || !results[place].requires_grad()) continue;
      outputs.push_back(results[place]);
      of_these.push_back(of_outputs[n]);
    }
    if (outputs.empty() || sources.empty()) return {};
    let_stand_in(stand_ins, outputs);
    return torch::autograd::grad(outputs, sources, of_these, /*retain_graph=*/false,
                                 /*create_graph=*/false, /*allow_unused=*/true);
  }
};

/// Runs the function for the first time, with a graph that is dropped at once. The graph tells
/// which results have a gradient; and without one, attention could take another path, with another
/// rounding than in the second run. Adds the parameters to `tensors`, the inputs that are defined.
/// Returns the results that have no graph, each in its place.
variable_list run_first(Recomputation& recomputation, variable_list& tensors) {
  const auto own = leaves(tensors, tensors.size());
  for (const auto& tensor : tensors) recomputation.watched.emplace_back(tensor);
  const auto first_node = at::sequence_number::peek();
  auto results = recomputation.run(own);
  for (size_t i = 0; i < own.size(); ++i) {
    HEED_CHECK(recomputation.watched[i].is_unchanged(),
               "{}: function must not change {} in place: it is called again with it",
               recomputation.caller, recomputation.name_of(i));
  }
  variable_list recorded;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].requires_grad()) continue;
    recomputation.recorded.push_back(i);
    recorded.push_back(results[i]);
  }
  const auto parameters = parameters_of(recorded, own, first_node);
  for (const auto& parameter : parameters) recomputation.watched.emplace_back(parameter);
  tensors.insert(tensors.end(), parameters.begin(), parameters.end());
  for (const auto place : recomputation.recorded) {
    recomputation.outputs.push_back(std::exchange(results[place], at::Tensor()).detach());
  }
  return results;
}

variable_list checkpoint_all(const char* caller, Function function, const variable_list& inputs,
                             std::vector<const char*> names = {}) {
  HEED_CHECK(!inputs.empty(), "{}: inputs size (0) must be at least 1", caller);
  if (!at::GradMode::is_enabled()) return function(inputs);
  const auto recomputation =
      c10::make_intrusive<Recomputation>(caller, std::move(function), inputs, std::move(names));
  auto tensors = c10::filter(inputs, [](const at::Tensor& input) { return input.defined(); });
  auto results = run_first(*recomputation, tensors);
  if (recomputation->recorded.empty()) return results;
  const auto outputs = Checkpoint::apply(at::TensorList(tensors), recomputation);
  for (size_t n = 0; n < outputs.size(); ++n) results[recomputation->recorded[n]] = outputs[n];
  return results;
}

/// Turns a function with one result into one that returns a list.
Function several(std::function<at::Tensor(const variable_list&)> function) {
  return [function = std::move(function)](const variable_list& inputs) {
    return variable_list{function(inputs)};
  };
}

}  // namespace

at::Tensor checkpoint_function(std::function<at::Tensor(const std::vector<at::Tensor>&)> function,
                               const std::vector<at::Tensor>& inputs) {
  return checkpoint_all(kCheckpoint, several(std::move(function)), inputs).front();
}

std::vector<at::Tensor> checkpoint_function(
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> function,
    const std::vector<at::Tensor>& inputs) {
  return checkpoint_all(kCheckpoint, std::move(function), inputs);
}

at::Tensor detail::checkpoint_named(
    const char* caller, std::function<at::Tensor(const std::vector<at::Tensor>&)> function,
    const std::vector<at::Tensor>& inputs, std::vector<const char*> names) {
  return checkpoint_all(caller, several(std::move(function)), inputs, std::move(names)).front();
}

}  // namespace heed
