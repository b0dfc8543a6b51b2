// SPDX-License-Identifier: BSD-3-Clause
#include "distributed/expert_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "distributed/collectives.h"

namespace heed::distributed::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The rows that come from each process.
std::vector<int64_t> totals(const std::vector<std::vector<int64_t>>& counts) {
  std::vector<int64_t> sums;
  sums.reserve(counts.size());
  for (const auto& each : counts) {
    sums.push_back(std::accumulate(each.begin(), each.end(), int64_t{0}));
  }
  return sums;
}

/// One after the other, or `otherwise`, which is empty, if there is none.
at::Tensor joined_rows(const std::vector<at::Tensor>& pieces, const at::Tensor& otherwise) {
  return pieces.empty() ? at::empty_like(otherwise) : at::cat(pieces);
}

/// Rows as they arrive, by process and by expert, to those of each expert.
std::vector<at::Tensor> by_expert(const at::Tensor& rows, const ExpertExchange& exchange) {
  std::vector<std::vector<at::Tensor>> pieces(exchange.arrived.front().size());
  int64_t first = 0;
  for (const auto& counts : exchange.arrived) {
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) pieces[i].push_back(rows.narrow(0, first, counts[i]));
      first += counts[i];
    }
  }
  const auto none = rows.narrow(0, 0, 0);
  std::vector<at::Tensor> of_experts;
  of_experts.reserve(pieces.size());
  for (const auto& own : pieces) of_experts.push_back(joined_rows(own, none));
  return of_experts;
}

/// The inverse of by_expert.
at::Tensor by_process(at::TensorList of_experts, const ExpertExchange& exchange) {
  std::vector<at::Tensor> pieces;
  std::vector<int64_t> firsts(of_experts.size());
  for (const auto& counts : exchange.arrived) {
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) pieces.push_back(of_experts[i].narrow(0, firsts[i], counts[i]));
      firsts[i] += counts[i];
    }
  }
  return joined_rows(pieces, of_experts.front().narrow(0, 0, 0)).contiguous();
}

void save(AutogradContext* context, const ExpertExchangePtr& exchange) {
  context->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
}

/// The exchange of the gradients.
ExpertExchangePtr of_gradients(const AutogradContext* context) {
  const auto capsule = context->saved_data.at("exchange").toCapsule();
  const auto& exchange = static_cast<const ExpertExchange&>(*capsule);
  const auto own = c10::make_intrusive<ExpertExchange>(exchange);
  own->function = "gradient of " + own->function;
  own->average = false;
  own->records_rows = own->records_outputs = at::GradMode::is_enabled();
  return own;
}

bool averages(const AutogradContext* context) {
  const auto capsule = context->saved_data.at("exchange").toCapsule();
  return static_cast<const ExpertExchange&>(*capsule).average;
}

/// An input of a node that makes autograd record it.
at::Tensor anchor(bool records) { return at::empty({0}).requires_grad_(records); }

struct Dispatch : public torch::autograd::Function<Dispatch> {
  static variable_list forward(AutogradContext* context, const at::Tensor& rows,
                               const at::Tensor& /*anchor*/, const ExpertExchangePtr& exchange) {
    save(context, exchange);
    return by_expert(exchange_rows(exchange->group, exchange->function + ": rows to experts",
                                   rows.contiguous(), exchange->sent, totals(exchange->arrived)),
                     *exchange);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto exchange = of_gradients(context);
    const auto rows = combine(gradients, exchange);
    return {averages(context) ? rows * exchange->group->getSize() : rows, {}, {}};
  }
};

struct Combine : public torch::autograd::Function<Combine> {
  static at::Tensor forward(AutogradContext* context, at::TensorList outputs,
                            const at::Tensor& /*anchor*/, const ExpertExchangePtr& exchange) {
    save(context, exchange);
    return exchange_rows(exchange->group, exchange->function + ": rows from experts",
                         by_process(outputs, *exchange), totals(exchange->arrived), exchange->sent);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto exchange = of_gradients(context);
    const auto& gradient = gradients[0];
    auto results =
        dispatch(averages(context) ? gradient / exchange->group->getSize() : gradient, exchange);
    results.resize(results.size() + 2);  // of the anchor and the exchange
    return results;
  }
};

}  // namespace

std::vector<at::Tensor> dispatch(const at::Tensor& rows, const ExpertExchangePtr& exchange) {
  return Dispatch::apply(rows, anchor(exchange->records_rows), exchange);
}

at::Tensor combine(const std::vector<at::Tensor>& outputs, const ExpertExchangePtr& exchange) {
  return Combine::apply(at::TensorList(outputs), anchor(exchange->records_outputs), exchange);
}

}  // namespace heed::distributed::detail
