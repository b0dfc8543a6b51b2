// SPDX-License-Identifier: BSD-3-Clause
#include <heed/distributed/expert_parallel.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <heed/distributed/parameter_shards.h>
#include <heed/stand_ins.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <typeinfo>
#include <unordered_map>

#include "core/error.h"
#include "distributed/collectives.h"
#include "distributed/differentiable.h"
#include "distributed/even_shard.h"
#include "distributed/sharded_experts.h"
#include "distributed/split_modules.h"
#include "models/routing_losses.h"

namespace heed::distributed {

namespace {

constexpr auto kParallelizeExperts = "parallelize_experts";

/// How many names each parameter has.
using NameCounts = std::unordered_map<const at::TensorImpl*, int64_t>;

NameCounts count_names(const torch::nn::Module& module) {
  NameCounts counts;
  for (const auto& parameter : module.parameters()) ++counts[parameter.unsafeGetTensorImpl()];
  return counts;
}

void check_experts(const std::string& name, const MixtureOfExpertsImpl& mixture,
                   const NameCounts& names, const ProcessGroup& group) {
  const auto function = name.empty() ? std::string(kParallelizeExperts)
                                     : fmt::format("{}: {}", kParallelizeExperts, name);
  detail::even_shard(function.c_str(), "expert_num", mixture.options.expert_num(), 0, group);
  for (const auto& expert : *mixture.experts) {
    HEED_CHECK(typeid(*expert) == typeid(FeedForwardImpl),
               "{}: experts must be FeedForward layers of heed's own", function);
    for (const auto& layer : expert->modules()) {
      HEED_CHECK(
          dynamic_cast<const LinearStandIn*>(layer.get()) == nullptr,
          "{}: experts must not have a layer in a Linear's place, such as one with an adapter",
          function);
    }
    for (const auto& parameter : expert->parameters()) {
      HEED_CHECK(names.at(parameter.unsafeGetTensorImpl()) == 1,
                 "{}: parameters of experts must not be those of another layer too", function);
    }
  }
}

void split_experts(MixtureOfExpertsImpl& mixture, const ProcessGroup& group, int64_t id) {
  const auto shard =
      detail::even_shard(kParallelizeExperts, "expert_num", mixture.options.expert_num(), 0, group);
  const std::shared_ptr<torch::nn::ModuleListImpl> experts =
      std::make_shared<detail::ShardedExpertsImpl>(*mixture.experts, shard, group, id);
  mixture.experts = mixture.replace_module("experts", experts);
}

/// A number that the processes of this group have, and hardly any others.
int64_t draw_id(const ProcessGroup& group) {
  std::random_device random;
  const auto drawn = (static_cast<uint64_t>(random()) << 32U) | random();
  const auto own = at::full({1}, static_cast<int64_t>(drawn), at::kLong);
  const auto operation = fmt::format("{}: a name of the group", kParallelizeExperts);
  return detail::all_gather(group, operation, own).front().item<int64_t>();
}

/// Calls `sums`, which must have as many experts in all processes.
template <typename Sums>
auto same_sums(const char* function, const std::vector<ExpertRouting>& routings,
               const ProcessGroup& group, const Sums& sums) {
  HEED_CHECK(group, "{}: group must not be null", function);
  decltype(sums()) own;
  detail::check_same(group, function, "logits", [&] {
    own = sums();
    const auto& logits = routings.front().logits;
    return fmt::format("{} [T, {}]", c10::toString(logits.scalar_type()), logits.size(1));
  });
  return own;
}

at::Tensor as_number(int64_t count, const at::Tensor& like) {
  return at::full({1}, static_cast<double>(count), like.options().requires_grad(false));
}

}  // namespace

void parallelize_experts(torch::nn::Module& module, const ProcessGroup& group) {
  HEED_CHECK(group, "{}: group must not be null", kParallelizeExperts);
  detail::check_same(group, kParallelizeExperts, "module", [&] {
    heed::detail::check_not_packed(kParallelizeExperts, module, ": split before");
    return detail::description(module);
  });
  HEED_CHECK(shards_of(module).empty(), "{}: module must not be split already",
             kParallelizeExperts);
  const auto submodules = detail::submodules_of(module);
  const auto names = count_names(module);
  std::vector<MixtureOfExpertsImpl*> mixtures;
  for (const auto& submodule : submodules) {
    auto* mixture = dynamic_cast<MixtureOfExpertsImpl*>(submodule.module);
    if (mixture == nullptr) continue;
    check_experts(submodule.name, *mixture, names, group);
    mixtures.push_back(mixture);
  }
  HEED_CHECK(!mixtures.empty(), "{}: module must be or contain a MixtureOfExperts",
             kParallelizeExperts);
  if (group->getSize() == 1) return;
  const auto id = draw_id(group);
  for (auto* mixture : mixtures) split_experts(*mixture, group, id);
}

at::Tensor load_balancing_loss(const std::vector<ExpertRouting>& routings,
                               const ProcessGroup& group, const std::optional<at::Tensor>& mask) {
  constexpr auto kFunction = "load_balancing_loss";
  const auto own = same_sums(kFunction, routings, group,
                             [&] { return heed::detail::balance_sums(kFunction, routings, mask); });
  const auto experts = own.chosen.size(0);
  const auto sums = detail::sum_for_losses(
      at::cat({own.probabilities, own.chosen, as_number(own.rows, own.chosen)}), group, kFunction);
  const auto probabilities = sums.narrow(0, 0, experts);
  const auto chosen = sums.detach().narrow(0, experts, experts);
  const auto rows = std::max(sums[2 * experts].item<double>(), 1.0);
  return (chosen * probabilities).sum() * (static_cast<double>(experts) / (rows * rows));
}

at::Tensor router_z_loss(const std::vector<ExpertRouting>& routings, const ProcessGroup& group,
                         const std::optional<at::Tensor>& mask) {
  constexpr auto kFunction = "router_z_loss";
  const auto own = same_sums(kFunction, routings, group,
                             [&] { return heed::detail::logit_sums(kFunction, routings, mask); });
  const auto sums = detail::sum_for_losses(
      at::cat({own.squares.view(1), as_number(own.rows, own.squares)}), group, kFunction);
  return sums[0] / std::max(sums[1].item<double>(), 1.0);
}

}  // namespace heed::distributed
