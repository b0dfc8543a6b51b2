// SPDX-License-Identifier: BSD-3-Clause
#include "models/expert_runs.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <heed/feed_forward.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <typeinfo>
#include <utility>

#include "core/plain.h"
#include "core/seen_tensors.h"
#include "cpu/layers/function.h"
#include "cpu/layers/swiglu_layer.h"
#include "cpu/threads.h"
#include "modules/layers/activation.h"
#include "modules/layers/packable.h"

// Experts with few rows keep several threads busy badly: each product ends with a barrier. So they
// run side by side where their rows divide evenly:
//
//   for each expert, the one with the most rows first, in parallel:
//     output = expert(rows)                 # one thread: cpu/layers/swiglu_layer.cpp, or `forward`
//
// Autograd would run the backward passes of their nodes one after the other. So all experts are one
// node, which keeps what each needs for its backward pass: swiglu_layer's hidden layer, or the
// graph from the expert's rows and parameters to its output:
//
//   for each expert, the one with the most rows first, in parallel:
//     gradients of rows and parameters                                                # one thread
//
// If these gradients are to be differentiated again, the experts run again, one after the other.

namespace heed::detail {

namespace {

using Experts = std::vector<std::shared_ptr<FeedForwardImpl>>;

Experts experts_of(const torch::nn::ModuleList& modules, size_t first, size_t count) {
  Experts experts;
  for (size_t i = first; i < first + count; ++i) {
    experts.push_back(std::dynamic_pointer_cast<FeedForwardImpl>(modules->ptr(i)));
  }
  return experts;
}

bool is_trained(const FeedForwardImpl& expert) { return is_recorded(expert.fc_out->weight); }

std::vector<at::Tensor> run_in_turn(const Experts& experts, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool runs = inputs[i].size(0) > 0 || is_trained(*experts[i]);
    outputs.push_back(runs ? experts[i]->forward(inputs[i]) : inputs[i]);
  }
  return outputs;
}

/// Whether another thread may run the expert: its layers are LibTorch's or packed, and it draws no
/// random numbers.
bool can_run_anywhere(const FeedForwardImpl& expert) {
  const auto is_plain_layer = [](const torch::nn::Linear& layer) {
    return layer.is_empty() || is_own_layer<torch::nn::LinearImpl>(*layer);
  };
  return typeid(expert) == typeid(FeedForwardImpl) && is_plain_layer(expert.fc_in) &&
         is_plain_layer(expert.fc_gate) && is_plain_layer(expert.fc_out) &&
         (expert.options.dropout() == 0.0 || !expert.is_training());
}

std::vector<int64_t> row_counts(const std::vector<at::Tensor>& inputs) {
  return c10::fmap(inputs, [](const at::Tensor& input) { return input.size(0); });
}

bool run_side_by_side_is_faster(const Experts& experts, const std::vector<at::Tensor>& inputs) {
  return calls_reach_kernels() && std::all_of(inputs.begin(), inputs.end(), is_plain) &&
         rows_divide(row_counts(inputs), at::get_num_threads()) &&
         std::all_of(experts.begin(), experts.end(),
                     [](const auto& expert) { return can_run_anywhere(*expert); });
}

/// The expert as swiglu_layer computes it; empty if it does not take this expert and these rows.
std::optional<SwiGluLayer> swiglu_layer_of(const FeedForwardImpl& expert, const at::Tensor& rows) {
  const auto& options = expert.options;
  if (options.activation() != Activation::swiglu || options.bias()) return {};
  if (at::autocast::is_autocast_enabled(at::kCPU)) return {};
  SwiGluLayer layer = {expert.fc_gate->weight, expert.fc_in->weight, expert.fc_out->weight,
                       swiglu_form(options)};
  if (!takes_swiglu_layer(rows, layer)) return {};
  return layer;
}

/// Calls run(i) for each i, the ones with the most rows first, in parallel and with the state of
/// this thread.
template <typename Run>
void for_experts(const std::vector<int64_t>& rows, const Run& run) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rows[a] > rows[b]; });
  const at::ThreadLocalState state;
  run_tasks(static_cast<int64_t>(order.size()), at::get_num_threads(), [&](TaskQueue& queue) {
    const at::ThreadLocalStateGuard as_there(state);
    for (int64_t task = 0; queue.next(task);) run(order[static_cast<size_t>(task)]);
  });
}

std::vector<at::Tensor> run_in_parallel(const Experts& experts,
                                        const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> outputs = inputs;
  for_experts(row_counts(inputs), [&](size_t i) {
    if (inputs[i].size(0) == 0) return;
    const auto layer = swiglu_layer_of(*experts[i], inputs[i]);
    outputs[i] =
        layer ? swiglu_layer(inputs[i], *layer, /*kept=*/nullptr) : experts[i]->forward(inputs[i]);
  });
  return outputs;
}

/// Each once, also one that has several names.
variable_list trained_parameters(const FeedForwardImpl& expert) {
  variable_list trained;
  SeenTensors seen;
  for (const auto& parameter : expert.parameters()) {
    if (parameter.requires_grad() && seen.add(parameter)) trained.push_back(parameter);
  }
  return trained;
}

/// An expert that swiglu_layer computed, with what its backward pass needs.
class SwiGluRun {
 public:
  /// Runs the expert.
  SwiGluRun(const SwiGluLayer& layer, const at::Tensor& rows, at::Tensor& output) : layer_(layer) {
    for (const auto& weight : {layer.gate, layer.up, layer.out}) {
      weights_.emplace_back(weight, /*is_output=*/false);
    }
    output = swiglu_layer(rows, layer, &hidden_);
  }

  /// The gradients of `sources`, undefined for those that are neither the rows nor weights of the
  /// expert. Throws if a weight was changed in place.
  variable_list differentiate(const at::Tensor& rows, const at::Tensor& gradient,
                              const variable_list& sources) const {
    const auto wanted = [&](const at::Tensor& tensor) {
      return std::any_of(sources.begin(), sources.end(),
                         [&](const auto& source) { return source.is_same(tensor); });
    };
    const SwiGluLayer saved = {weights_[0].unpack(), weights_[1].unpack(), weights_[2].unpack(),
                               layer_.form};
    const auto found = swiglu_layer_backward(
        rows, saved, hidden_, gradient.contiguous(),
        {wanted(rows), wanted(layer_.gate), wanted(layer_.up), wanted(layer_.out)});
    const std::pair<at::Tensor, at::Tensor> all[] = {{rows, found.rows},
                                                     {layer_.gate, found.gate},
                                                     {layer_.up, found.up},
                                                     {layer_.out, found.out}};
    return c10::fmap(sources, [&](const at::Tensor& source) {
      at::Tensor sum;  // a tensor may have several places
      for (const auto& [tensor, own] : all) {
        if (tensor.is_same(source)) sum = sum.defined() ? sum + own : own;
      }
      return sum;
    });
  }

 private:
  SwiGluLayer layer_;
  std::vector<torch::autograd::SavedVariable> weights_;  // notice changes in place
  SwiGluHidden hidden_;
};

/// An expert, its rows, and what leads from its output back to them.
struct ExpertGraph {
  /// The tensors by which the output is differentiated, if the rows are `from`.
  variable_list sources(const at::Tensor& from) const {
    auto all = parameters;
    if (from.requires_grad()) all.push_back(from);
    return all;
  }

  /// Computes the output.
  void run() {
    rows = rows.detach().requires_grad_(rows.requires_grad());
    if (const auto layer = swiglu_layer_of(*expert, rows)) {
      swiglu.emplace(*layer, rows, output);
      return;
    }
    const at::AutoGradMode records(true);
    output = expert->forward(rows);
  }

  /// The gradients of the sources; none if there is no source.
  variable_list differentiate(const at::Tensor& gradient, bool keeps_graph) const {
    const auto inputs = sources(rows);
    if (inputs.empty()) return {};
    if (swiglu) return swiglu->differentiate(rows, gradient, inputs);
    return torch::autograd::grad({output}, inputs, {gradient}, keeps_graph,
                                 /*create_graph=*/false, /*allow_unused=*/true);
  }

  /// The gradients of the sources, with a graph that leads to them and to `from`, the rows.
  variable_list differentiate_again(const at::Tensor& from, const at::Tensor& gradient) const {
    const auto inputs = sources(from);
    if (inputs.empty()) return {};
    return torch::autograd::grad({expert->forward(from)}, inputs, {gradient},
                                 /*retain_graph=*/true, /*create_graph=*/true,
                                 /*allow_unused=*/true);
  }

  void release() {
    swiglu.reset();
    output.reset();
  }

  std::shared_ptr<FeedForwardImpl> expert;
  at::Tensor rows;
  variable_list parameters;  // those that require a gradient
  at::Tensor output;
  std::optional<SwiGluRun> swiglu;  // or the output has a graph
};

variable_list joined(const std::vector<variable_list>& lists) {
  variable_list all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

/// The graphs of all experts.
class ExpertGraphs : public torch::CustomClassHolder {
 public:
  ExpertGraphs(const Experts& experts, const std::vector<at::Tensor>& inputs)
      : rows_(row_counts(inputs)) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      graphs_.push_back({experts[i], inputs[i], trained_parameters(*experts[i]), {}, {}});
    }
  }

  /// The tensors by which the outputs are differentiated, of one expert after the other.
  variable_list sources() const {
    return joined(c10::fmap(graphs_, [](const auto& each) { return each.sources(each.rows); }));
  }

  /// Runs the experts. Returns their outputs without history.
  variable_list run() {
    for_experts(rows_, [&](size_t i) { graphs_[i].run(); });
    return c10::fmap(graphs_, [](const auto& each) { return each.output.detach(); });
  }

  /// The gradients of the sources.
  variable_list differentiate(const variable_list& gradients, bool keeps_graphs) {
    std::vector<variable_list> results(graphs_.size());
    for_experts(rows_, [&](size_t i) {
      results[i] = graphs_[i].differentiate(gradients[i], keeps_graphs);
      if (!keeps_graphs) graphs_[i].release();
    });
    return joined(results);
  }

  /// The gradients of the sources, with a graph that leads to them and to `inputs`.
  variable_list differentiate_again(const variable_list& inputs,
                                    const variable_list& gradients) const {
    const at::ThreadLocalStateGuard as_before(state_);
    const at::AutoGradMode records(true);
    std::vector<variable_list> results(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      results[i] = graphs_[i].differentiate_again(inputs[i], gradients[i]);
    }
    return joined(results);
  }

 private:
  const std::vector<int64_t> rows_;
  const at::ThreadLocalState state_;  // autocast's, for a second run
  std::vector<ExpertGraph> graphs_;
};

using GraphsPtr = c10::intrusive_ptr<ExpertGraphs>;

struct RunExperts : public torch::autograd::Function<RunExperts> {
  static variable_list forward(AutogradContext* context, const GraphsPtr& graphs,
                               const variable_list& inputs, at::TensorList /*sources*/) {
    context->save_for_backward(inputs);
    context->saved_data["graphs"] = c10::IValue::make_capsule(graphs);
    return graphs->run();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto inputs = context->get_saved_variables();
    const auto capsule = context->saved_data["graphs"].toCapsule();
    auto& graphs = static_cast<ExpertGraphs&>(*capsule);
    const auto of_sources =
        at::GradMode::is_enabled()
            ? graphs.differentiate_again(inputs, gradients)
            : graphs.differentiate(gradients, torch::autograd::get_current_graph_task_keep_graph());
    variable_list results(2);  // of graphs and inputs, which are sources too
    results.insert(results.end(), of_sources.begin(), of_sources.end());
    return results;
  }
};

}  // namespace

bool rows_divide(const std::vector<int64_t>& rows, int64_t threads) {
  constexpr double kMost = 1.25;  // shares of the thread with the most rows
  auto sorted = rows;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  std::vector<int64_t> of_threads(static_cast<size_t>(threads));
  int64_t sum = 0;
  for (const auto count : sorted) {
    *std::min_element(of_threads.begin(), of_threads.end()) += count;
    sum += count;
  }
  const auto most = *std::max_element(of_threads.begin(), of_threads.end());
  return threads > 1 && static_cast<double>(most * threads) <= kMost * static_cast<double>(sum);
}

std::vector<at::Tensor> run_experts(const torch::nn::ModuleList& experts,
                                    const std::vector<at::Tensor>& inputs, size_t first) {
  const auto all = experts_of(experts, first, inputs.size());
  if (!run_side_by_side_is_faster(all, inputs)) return run_in_turn(all, inputs);
  if (!at::GradMode::is_enabled()) return run_in_parallel(all, inputs);
  const auto graphs = c10::make_intrusive<ExpertGraphs>(all, inputs);
  const auto sources = graphs->sources();
  if (sources.empty()) return run_in_parallel(all, inputs);
  return RunExperts::apply(graphs, inputs, at::TensorList(sources));
}

}  // namespace heed::detail
