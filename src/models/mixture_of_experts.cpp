#include <heed/mixture_of_experts.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "core/autocast.h"
#include "core/checks.h"
#include "cpu/layers/expert_rows.h"
#include "models/expert_runs.h"
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

void check_routings(const char* function, const std::vector<ExpertRouting>& routings,
                    const std::optional<at::Tensor>& mask) {
  HEED_CHECK(!routings.empty(), "{}: routings must not be empty", function);
  const auto& first = routings.front().logits;
  for (size_t i = 0; i < routings.size(); ++i) {
    const auto& [experts, weights, logits] = routings[i];
    const auto name = fmt::format("routings[{}] logits", i);
    detail::check_defined(function, name.c_str(), logits);
    detail::check_rank(function, name.c_str(), logits, 2);
    HEED_CHECK(experts.defined() && experts.dim() == 2 && experts.size(0) == logits.size(0) &&
                   experts.scalar_type() == at::kLong,
               "{}: routings[{}] experts must be int64 [T, K] with the T of the logits {}",
               function, i, detail::shape(logits));
    HEED_CHECK(logits.size(1) == first.size(1),
               "{}: routings[{}] must have {} experts, as routings[0] has; logits {}", function, i,
               first.size(1), detail::shape(logits));
    HEED_CHECK(!mask || (mask->defined() && mask->scalar_type() == at::kBool && mask->dim() == 1 &&
                         mask->size(0) == logits.size(0)),
               "{}: mask must be bool [T]; logits of routings[{}] {}", function, i,
               detail::shape(logits));
  }
}

/// Calls add(routing) with the rows of each routing that count, and returns their number.
template <typename Add>
int64_t visit_rows(const std::vector<ExpertRouting>& routings,
                   const std::optional<at::Tensor>& mask, const Add& add) {
  const auto kept = mask ? mask->nonzero().squeeze(1) : at::Tensor();
  const auto rows_of = [&](const at::Tensor& tensor) {
    return mask ? tensor.index_select(0, kept) : tensor;
  };
  int64_t count = 0;
  for (const auto& routing : routings) {
    const auto logits = rows_of(routing.logits);
    add(rows_of(routing.experts), logits);
    count += logits.size(0);
  }
  return count;
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
  const auto experts = std::get<1>(without_other_groups(choice).topk(options.top_k(), -1));
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
  detail::check_rows(kMixture, "x", x, router->weight);
  const auto rows = x.reshape({-1, x.size(-1)});
  const auto routing = route_rows(rows);
  RoutingRecord::add(routing);
  const detail::ExpertPlaces places(routing.experts, options.expert_num());
  const auto outputs = detail::run_experts(experts, detail::gather_rows(rows, places));
  auto sum = detail::weigh_rows(outputs, routing.weights, places);
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

at::Tensor load_balancing_loss(const std::vector<ExpertRouting>& routings,
                               const std::optional<at::Tensor>& mask) {
  check_routings("load_balancing_loss", routings, mask);
  const auto expert_num = routings.front().logits.size(1);
  at::Tensor chosen, probabilities;  // sums over rows, [N]
  const auto add = [](at::Tensor& sum, const at::Tensor& part) {
    sum = sum.defined() ? sum + part : part;
  };
  const auto count = visit_rows(routings, mask, [&](const auto& experts, const auto& logits) {
    const auto ones = at::ones_like(experts, logits.scalar_type()).flatten();
    const auto none = at::zeros({expert_num}, ones.options());
    add(chosen, none.scatter_add(0, experts.flatten(), ones));
    add(probabilities, logits.softmax(-1).sum(0));
  });
  const auto rows = static_cast<double>(std::max<int64_t>(count, 1));
  return (chosen * probabilities).sum() * (static_cast<double>(expert_num) / (rows * rows));
}

at::Tensor router_z_loss(const std::vector<ExpertRouting>& routings,
                         const std::optional<at::Tensor>& mask) {
  check_routings("router_z_loss", routings, mask);
  at::Tensor sum;
  const auto count = visit_rows(routings, mask, [&](const auto&, const auto& logits) {
    const auto own = logits.logsumexp(-1).square().sum();
    sum = sum.defined() ? sum + own : own;
  });
  return sum / static_cast<double>(std::max<int64_t>(count, 1));
}

}  // namespace heed
