// SPDX-License-Identifier: BSD-3-Clause
#include <heed/mixture_of_experts.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "core/autocast.h"
#include "core/checks.h"
#include "cpu/layers/expert_rows.h"
#include "cpu/layers/largest_places.h"
#include "models/expert_runs.h"
#include "models/expert_sharing.h"
#include "modules/layers/linear.h"
#include "modules/layers/parameters.h"
#include "modules/module_checks.h"
#include "modules/print.h"

namespace heed {

namespace {

constexpr auto kMixture = "MixtureOfExperts";

// More experts than anyone has trained. They are made one by one, and too many fill the memory.
constexpr int64_t kMostExperts = 1 << 16;

FeedForwardImpl& expert_of(const torch::nn::ModuleList& experts, size_t i) {
  return *experts.ptr()->ptr<FeedForwardImpl>(i);
}

/// The sums of the outputs of experts that several processes have. `choose` sets rows and routing.
template <typename Choose>
at::Tensor run_shared(const detail::ExpertSharing& sharing, const torch::nn::ModuleList& experts,
                      const Choose& choose, const at::Tensor& rows, const ExpertRouting& routing) {
  std::unique_ptr<detail::ExpertPlaces> all;  // those of all experts, as of one
  const auto prepare = [&] {
    auto places = choose();
    const std::vector<int64_t> count = {places.order.numel()};
    all = std::make_unique<detail::ExpertPlaces>(places.top_k, places.order, count);
    const auto sorted = detail::gather_rows(rows, *all).front();
    return detail::ExpertRows{detail::cast_for_product(sorted), std::move(places.counts)};
  };
  const auto first = static_cast<size_t>(sharing.part().first);
  const auto outputs = sharing.run(prepare, [&](const std::vector<at::Tensor>& inputs) {
    return detail::run_experts(experts, inputs, first);
  });
  return detail::weigh_rows({outputs}, routing.weights, *all);
}

RoutingRecord*& innermost_record() {
  thread_local RoutingRecord* record = nullptr;
  return record;
}

}  // namespace

std::string_view to_string(ExpertScore score) {
  constexpr std::string_view kNames[] = {"softmax", "sigmoid"};
  const auto name = static_cast<size_t>(score);
  TORCH_INTERNAL_ASSERT(name < std::size(kNames), "unknown ExpertScore");
  return kNames[name];
}

MixtureOfExpertsImpl::MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options)
    : options(options) {
  reset();
}

void MixtureOfExpertsImpl::check_options() const {
  const auto experts = options.expert_num(), groups = options.group_num();
  const auto check_range = [](const char* name, int64_t value, const char* most_name,
                              int64_t most) {
    HEED_CHECK(value >= 1 && value <= most, "{}: {} ({}) must be at least 1 and at most {} ({})",
               kMixture, name, value, most_name, most);
  };
  detail::check_positive(kMixture, "expert_num", experts);
  HEED_CHECK(experts <= kMostExperts, "{}: expert_num ({}) must be at most {}", kMixture, experts,
             kMostExperts);
  check_range("top_k", options.top_k(), "expert_num", experts);
  HEED_CHECK(std::isfinite(options.scale()) && options.scale() != 0,
             "{}: scale ({}) must be finite and not 0", kMixture, options.scale());
  detail::check_positive(kMixture, "group_num", groups);
  detail::check_divisible(kMixture, "expert_num", experts, "group_num", groups);
  check_range("top_groups", options.top_groups(), "group_num", groups);
  check_range("group_best", options.group_best(), "expert_num / group_num", experts / groups);
  HEED_CHECK(options.top_k() <= options.top_groups() * (experts / groups),
             "{}: top_k ({}) must be at most the experts of top_groups ({}) groups ({})", kMixture,
             options.top_k(), options.top_groups(), options.top_groups() * (experts / groups));
  const auto width = options.expert().emb_dim();
  HEED_CHECK(!options.shared() || options.shared()->emb_dim() == width,
             "{}: shared emb_dim ({}) must equal expert emb_dim ({})", kMixture,
             options.shared() ? options.shared()->emb_dim() : 0, width);
  HEED_CHECK(options.shared() || !options.shared_gate(),
             "{}: shared_gate must be false without shared", kMixture);
}

void MixtureOfExpertsImpl::reset() {
  detail::check_positive(kMixture, "emb_dim", options.expert().emb_dim());
  check_options();
  const auto width = options.expert().emb_dim(), count = options.expert_num();
  router = register_module("router", detail::make_linear(width, count, options.router_bias()));
  experts = register_module("experts", torch::nn::ModuleList());
  for (int64_t i = 0; i < count; ++i) experts->push_back(FeedForward(options.expert()));
  if (const auto& own = options.shared()) shared = register_module("shared", FeedForward(*own));
  if (options.shared_gate()) {
    fc_shared_gate =
        register_module("fc_shared_gate", detail::make_linear(width, 1, /*bias=*/false));
  }
  if (options.choice_bias()) {
    choice_bias = register_buffer("choice_bias", detail::empty_parameter({count}).to(at::kFloat));
    if (!detail::UninitializedParameters::are_made()) choice_bias.zero_();
  }
}

void MixtureOfExpertsImpl::reset_parameters() {
  detail::reset_parameters(router);
  for (size_t i = 0; i < experts->size(); ++i) expert_of(experts, i).reset_parameters();
  if (shared) shared->reset_parameters();
  if (fc_shared_gate) detail::reset_parameters(fc_shared_gate);
  if (choice_bias.defined()) choice_bias.zero_();
}

void MixtureOfExpertsImpl::pretty_print(std::ostream& stream) const {
  detail::ModulePrinter(stream, kMixture)
      .show("expert_num", options.expert_num())
      .show("top_k", options.top_k())
      .option("score", to_string(options.score()), to_string(ExpertScore::softmax))
      .option("normalize", options.normalize(), true)
      .option("scale", options.scale(), 1.0)
      .option("router_bias", options.router_bias(), false)
      .option("choice_bias", options.choice_bias(), false)
      .option("group_num", options.group_num(), int64_t{1})
      .option("top_groups", options.top_groups(), int64_t{1})
      .option("group_best", options.group_best(), int64_t{1})
      .option("shared_gate", options.shared_gate(), false);
}

at::Tensor MixtureOfExpertsImpl::router_logits(const at::Tensor& rows) const {
  const auto dtype = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (const auto* own = detail::stand_in_of(*router)) return own->project(rows).to(dtype);
  const auto& bias = router->bias;
  return detail::linear(rows.to(dtype), router->weight.to(dtype),
                        bias.defined() ? bias.to(dtype) : bias);
}

/// scores [T, N], with -infinity for the experts outside of each row's best groups.
at::Tensor MixtureOfExpertsImpl::without_other_groups(const at::Tensor& scores) const {
  if (options.top_groups() == options.group_num()) return scores;
  const auto by_group = scores.unflatten(1, {options.group_num(), -1});
  const auto group_scores = std::get<0>(by_group.topk(options.group_best(), -1)).sum(-1);
  const auto best = std::get<1>(group_scores.topk(options.top_groups(), -1));
  const auto is_other = at::ones_like(group_scores, at::kBool).scatter_(1, best, false);
  constexpr auto kLowest = -std::numeric_limits<double>::infinity();
  return by_group.masked_fill(is_other.unsqueeze(-1), kLowest).flatten(1);
}

ExpertRouting MixtureOfExpertsImpl::route_rows(const at::Tensor& rows) const {
  constexpr double kTiny = 1e-20;  // far below any sum of scores but one of zeros
  const auto logits = router_logits(rows);
  const auto scores =
      options.score() == ExpertScore::softmax ? logits.softmax(-1) : at::sigmoid(logits);
  auto choice = scores.detach();
  if (choice_bias.defined()) choice = choice + choice_bias;
  const auto experts = detail::largest_places(without_other_groups(choice), options.top_k());
  auto weights = scores.gather(-1, experts);
  if (options.normalize()) weights = weights / (weights.sum(-1, /*keepdim=*/true) + kTiny);
  if (options.scale() != 1.0) weights = weights * options.scale();
  return {experts, weights, logits};
}

ExpertRouting MixtureOfExpertsImpl::route(const at::Tensor& x) const {
  detail::check_rows(kMixture, "x", x, router->weight);
  return route_rows(x.reshape({-1, x.size(-1)}));
}

at::Tensor MixtureOfExpertsImpl::shared_output(const at::Tensor& rows) const {
  const auto output = shared.ptr()->forward(rows);
  return fc_shared_gate ? output * at::sigmoid(detail::project(fc_shared_gate, rows)) : output;
}

at::Tensor MixtureOfExpertsImpl::forward(const at::Tensor& x) {
  at::Tensor rows;
  ExpertRouting routing;
  const auto choose = [&] {
    detail::check_rows(kMixture, "x", x, router->weight);
    rows = x.reshape({-1, x.size(-1)});
    routing = route_rows(rows);
    return detail::ExpertPlaces(routing.experts, options.expert_num());
  };
  at::Tensor sum;
  if (const auto* sharing = detail::sharing_of(experts)) {
    sum = run_shared(*sharing, experts, choose, rows, routing);
  } else {
    const auto places = choose();
    const auto outputs = detail::run_experts(experts, detail::gather_rows(rows, places));
    sum = detail::weigh_rows(outputs, routing.weights, places);
  }
  RoutingRecord::add(routing);
  if (shared) sum = sum + shared_output(rows);
  return sum.reshape(x.sizes());
}

void MixtureOfExpertsImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  detail::keep_values(choice_bias, [&] { Cloneable::to(device, dtype, non_blocking); });
}

void MixtureOfExpertsImpl::to(torch::Dtype dtype, bool non_blocking) {
  detail::keep_values(choice_bias, [&] { Cloneable::to(dtype, non_blocking); });
}

RoutingRecord::RoutingRecord() : outer_(std::exchange(innermost_record(), this)) {}

RoutingRecord::~RoutingRecord() { innermost_record() = outer_; }

bool RoutingRecord::is_active() { return innermost_record() != nullptr; }

void RoutingRecord::add(const ExpertRouting& routing) {
  if (auto* record = innermost_record()) record->routings_.push_back(routing);
}

}  // namespace heed
