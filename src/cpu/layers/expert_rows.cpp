// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/layers/expert_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/functional.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/direct.h"
#include "core/dtypes.h"
#include "core/tangents.h"
#include "core/to_device.h"
#include "cpu/layers/function.h"
#include "cpu/layers/tasks.h"

// Rows on their way to experts and back. Each row has K places, one for each expert that it chose:
//
//   gather_rows:  inputs[n] = the rows of expert n, one after the other: each is read once
//     backward:   drow[t] = sum over k of dinput[place of (t, k)]        # weigh_rows, weights of 1
//   weigh_rows:   y[t] = sum over k of weight[t, k] * output[place of (t, k)]
//     backward:   doutput[place of (t, k)] = weight[t, k] * dy[t]
//                 dweight[t, k] = sum of dy[t] * output[place of (t, k)]
//
// for each row t, in parallel, by a table of the addresses of its places (cpu/isa/layers.cpp).
// Sums are in the order of k: results are the same with any number of threads. LibTorch's own
// derivative of index_select adds one row after the other on the CPU, and in any order on a GPU.

namespace heed::detail {

namespace {

at::Tensor rows_of_places(const ExpertPlaces& places) {
  return places.top_k == 1 ? places.order : places.order.div(places.top_k, "floor");
}

/// Tensors of all experts as one, [T K, E], in the order of the places.
at::Tensor by_place(const std::vector<at::Tensor>& of_experts, const ExpertPlaces& places) {
  std::vector<at::Tensor> with_rows;
  for (const auto& tensor : of_experts) {
    if (tensor.size(0) > 0) with_rows.push_back(tensor);
  }
  if (with_rows.empty()) return of_experts.front();
  const auto& order = places.order;
  const auto positions = at::arange(order.numel(), order.options());
  const auto inverse = at::empty_like(order).scatter_(0, order, positions);
  return at::cat(with_rows).index_select(0, inverse);
}

/// `weigh_rows` by operators, on any device and differentiable. Without weights, all are 1.
at::Tensor weighed_by_operators(const std::vector<at::Tensor>& outputs, const at::Tensor& weights,
                                const ExpertPlaces& places) {
  const auto rows = by_place(outputs, places);
  const auto by_row = rows.unflatten(0, {-1, places.top_k});
  return (weights.defined() ? by_row * weights.unsqueeze(-1) : by_row)
      .sum(1)
      .to(rows.scalar_type());
}

/// Whether the kernels take these tensors: contiguous, of one dtype, on the CPU.
bool take_kernels(const std::vector<at::Tensor>& of_experts) {
  if (!has_kernels() || !calls_reach_kernels()) return false;
  const at::Tensor* first = nullptr;
  for (const auto& tensor : of_experts) {
    if (tensor.numel() == 0) continue;
    if (first == nullptr) first = &tensor;
    if (!is_plain(tensor) || !tensor.is_contiguous() ||
        tensor.scalar_type() != first->scalar_type()) {
      return false;
    }
  }
  return first != nullptr && is_attention_dtype(first->scalar_type());
}

/// The address of the row at each place: [T K].
std::vector<void*> addresses_of(const std::vector<at::Tensor>& of_experts,
                                const ExpertPlaces& places) {
  const auto* order = places.order.const_data_ptr<int64_t>();
  std::vector<void*> rows(static_cast<size_t>(places.order.numel()));
  for (size_t n = 0; n < of_experts.size(); ++n) {
    if (places.counts[n] == 0) continue;
    const auto& tensor = of_experts[n];
    auto* row = static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()));
    const auto bytes = tensor.size(1) * tensor.element_size();
    for (int64_t i = 0; i < places.counts[n]; ++i, row += bytes) {
      rows[static_cast<size_t>(*order++)] = row;
    }
  }
  return rows;
}

template <typename Run>
void for_rows(const ExpertPlaces& places, int64_t columns, const Run& run) {
  at::parallel_for(0, places.order.numel() / places.top_k, rows_per_task(columns * places.top_k),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t t = begin; t < end; ++t) run(t);
                   });
}

template <typename T>
void weigh(const LayerKernelsOf<T>& kernels, const std::vector<at::Tensor>& outputs,
           const at::Tensor& weights, const ExpertPlaces& places, const at::Tensor& result) {
  const auto columns = result.size(1), top_k = places.top_k;
  const auto rows = addresses_of(outputs, places);
  const T* first = weights.defined() ? weights.const_data_ptr<T>() : nullptr;
  for_rows(places, columns, [&](int64_t t) {
    const T* own = first ? first + t * top_k : nullptr;
    kernels.weigh_rows({rows.data() + t * top_k, own, top_k},
                       rows_at(result, t * columns, 1, columns));
  });
}

at::Tensor weighed_by_kernel(const std::vector<at::Tensor>& outputs, const at::Tensor& weights,
                             const ExpertPlaces& places) {
  size_t n = 0;
  while (outputs[n].numel() == 0) ++n;
  const auto& like = outputs[n];
  auto result =
      empty_on_cpu({places.order.numel() / places.top_k, like.size(1)}, like.scalar_type());
  with_layer_kernels(like.scalar_type(), [&](const auto& kernels) {
    weigh(kernels, outputs, weights, places, result);
  });
  return result;
}

/// `weigh_rows`, without autograd; weights [T, K] contiguous, or undefined for 1.
at::Tensor weighed(const std::vector<at::Tensor>& outputs, const at::Tensor& weights,
                   const ExpertPlaces& places) {
  return take_kernels(outputs) ? weighed_by_kernel(outputs, weights, places)
                               : weighed_by_operators(outputs, weights, places);
}

struct WeighedGradients {
  std::vector<at::Tensor> outputs;
  at::Tensor weights;
};

template <typename T>
void differentiate(const LayerKernelsOf<T>& kernels, const std::vector<at::Tensor>& outputs,
                   const at::Tensor& weights, const ExpertPlaces& places,
                   const at::Tensor& gradient, const WeighedGradients& result) {
  const auto columns = gradient.size(1), top_k = places.top_k;
  const auto rows = addresses_of(outputs, places), of_rows = addresses_of(result.outputs, places);
  const T* first = weights.const_data_ptr<T>();
  T* const of_weights = result.weights.mutable_data_ptr<T>();
  for_rows(places, columns, [&](int64_t t) {
    const auto place = t * top_k;
    kernels.weigh_rows_backward({rows.data() + place, first + place, top_k},
                                rows_at(gradient, t * columns, 1, columns), of_rows.data() + place,
                                of_weights + place);
  });
}

WeighedGradients gradients_by_kernel(const std::vector<at::Tensor>& outputs,
                                     const at::Tensor& weights, const ExpertPlaces& places,
                                     const at::Tensor& gradient) {
  WeighedGradients result{{}, empty_as(weights)};
  for (const auto& output : outputs) result.outputs.push_back(empty_as(output));
  with_layer_kernels(gradient.scalar_type(), [&](const auto& kernels) {
    differentiate(kernels, outputs, weights, places, gradient, result);
  });
  return result;
}

/// The gradients of `weigh_rows` by operators, which autograd can differentiate again.
WeighedGradients gradients_by_operators(const std::vector<at::Tensor>& outputs,
                                        const at::Tensor& weights, const ExpertPlaces& places,
                                        const at::Tensor& gradient) {
  const auto by_row = by_place(outputs, places).unflatten(0, {-1, places.top_k});
  const auto of_weights = (by_row * gradient.unsqueeze(1)).sum(-1).to(weights.scalar_type());
  const auto sorted = weights.flatten().index_select(0, places.order).unsqueeze(1);
  const auto of_outputs = gradient.index_select(0, rows_of_places(places)) * sorted;
  return {of_outputs.to(gradient.scalar_type()).split_with_sizes(places.counts), of_weights};
}

/// Tensors and numbers of ExpertPlaces that a node keeps.
void keep(AutogradContext* context, const ExpertPlaces& places, variable_list tensors) {
  tensors.push_back(places.order);
  context->save_for_backward(std::move(tensors));
  context->saved_data["counts"] = places.counts;
  context->saved_data["top_k"] = places.top_k;
}

ExpertPlaces kept_places(AutogradContext* context, variable_list& saved) {
  auto order = std::move(saved.back());
  saved.pop_back();
  return {context->saved_data["top_k"].toInt(), std::move(order),
          context->saved_data["counts"].toIntVector()};
}

/// `gather_rows` of contiguous rows, each of which is read once.
std::vector<at::Tensor> copied(const at::Tensor& rows, const ExpertPlaces& places) {
  const auto columns = rows.size(1), bytes = columns * rows.element_size();
  const auto inputs = c10::fmap(places.counts, [&](int64_t count) {
    return empty_on_cpu({count, columns}, rows.scalar_type());
  });
  const auto to = addresses_of(inputs, places);
  const auto* from = static_cast<const char*>(rows.const_data_ptr());
  for_rows(places, columns, [&](int64_t t) {
    for (int64_t k = 0; k < places.top_k; ++k) {
      std::memcpy(to[static_cast<size_t>(t * places.top_k + k)], from + t * bytes,
                  static_cast<size_t>(bytes));
    }
  });
  return inputs;
}

/// `gather_rows`, without autograd.
std::vector<at::Tensor> gathered(const at::Tensor& rows, const ExpertPlaces& places) {
  if (has_kernels() && calls_reach_kernels() && is_plain(rows)) {
    return copied(rows.contiguous(), places);
  }
  return rows.index_select(0, rows_of_places(places)).split_with_sizes(places.counts);
}

struct GatherRows : public torch::autograd::Function<GatherRows> {
  static variable_list forward(AutogradContext* context, const at::Tensor& rows,
                               const ExpertPlaces& places) {
    keep(context, places, {});
    return gathered(rows, places);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto saved = context->get_saved_variables();
    const auto places = kept_places(context, saved);
    if (at::GradMode::is_enabled()) return {weighed_by_operators(gradients, {}, places), {}};
    auto dense = gradients;
    for (auto& gradient : dense) gradient = gradient.contiguous();
    return {weighed(dense, {}, places), {}};
  }
};

struct WeighRows : public torch::autograd::Function<WeighRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weights,
                            const ExpertPlaces& places, at::TensorList outputs) {
    auto kept = outputs.vec();
    auto result = weighed(kept, weights, places);
    kept.push_back(weights);
    keep(context, places, std::move(kept));
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto outputs = context->get_saved_variables();
    const auto places = kept_places(context, outputs);
    const auto weights = std::move(outputs.back());
    outputs.pop_back();
    const auto gradient = gradients[0].contiguous();
    const bool kernel = !at::GradMode::is_enabled() && take_kernels(outputs) && is_plain(gradient);
    auto result = kernel ? gradients_by_kernel(outputs, weights, places, gradient)
                         : gradients_by_operators(outputs, weights, places, gradient);
    variable_list all = {std::move(result.weights), {}};
    all.insert(all.end(), result.outputs.begin(), result.outputs.end());
    return all;
  }
};

/// Whether a node of ours is recorded: it knows nothing of tangents.
bool are_recorded(const std::vector<at::Tensor>& tensors) {
  bool recorded = false;
  for (const auto& tensor : tensors) {
    if (has_tangent(tensor)) return false;
    recorded = recorded || is_recorded(tensor);
  }
  return recorded;
}

}  // namespace

ExpertPlaces::ExpertPlaces(const at::Tensor& experts, int64_t expert_num)
    : top_k(experts.size(1)), counts(static_cast<size_t>(expert_num)) {
  const auto of_places = to_host(experts);
  for (const auto expert : of_places) ++counts[static_cast<size_t>(expert)];
  std::vector<int64_t> next(counts.size());  // where the next place of each expert goes
  for (size_t n = 1; n < counts.size(); ++n) next[n] = next[n - 1] + counts[n - 1];
  std::vector<int64_t> sorted(of_places.size());
  for (size_t i = 0; i < of_places.size(); ++i) {
    auto& position = next[static_cast<size_t>(of_places[i])];
    sorted[static_cast<size_t>(position++)] = static_cast<int64_t>(i);
  }
  order = to_device(sorted, experts.device());
}

ExpertPlaces::ExpertPlaces(int64_t top_k, at::Tensor order, std::vector<int64_t> counts)
    : top_k(top_k), order(std::move(order)), counts(std::move(counts)) {}

std::vector<at::Tensor> gather_rows(const at::Tensor& rows, const ExpertPlaces& places) {
  return are_recorded({rows}) ? GatherRows::apply(rows, places) : gathered(rows, places);
}

at::Tensor weigh_rows(const std::vector<at::Tensor>& outputs, const at::Tensor& weights,
                      const ExpertPlaces& places) {
  std::vector<at::Tensor> all = {weights.contiguous()};
  for (const auto& output : outputs) all.push_back(output.contiguous());
  const at::TensorList dense = at::TensorList(all).slice(1);
  if (are_recorded(all)) return WeighRows::apply(all[0], places, dense);
  const bool has_tangents = std::any_of(all.begin(), all.end(), has_tangent);
  return has_tangents ? weighed_by_operators(dense.vec(), all[0], places)
                      : weighed(dense.vec(), all[0], places);
}

}  // namespace heed::detail
