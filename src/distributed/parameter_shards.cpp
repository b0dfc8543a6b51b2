// SPDX-License-Identifier: BSD-3-Clause
#include <heed/distributed/parameter_shards.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/check_memory.h"
#include "core/seen_tensors.h"
#include "distributed/collectives.h"
#include "distributed/sharded_experts.h"
#include "models/gradients.h"
#include "modules/layers/stand_in.h"

namespace heed::distributed {

namespace {

constexpr auto kClip = "clip_grad_norm_";

std::string joined(const std::string& module, const char* name) {
  return module.empty() ? name : module + "." + name;
}

/// Adds the shard of the sinks, which are split as the query heads are.
template <typename Attention>
void add_sinks(const std::string& name, const torch::nn::Module& module, TensorShards& shards) {
  const auto* attention = dynamic_cast<const Attention*>(&module);
  if (attention == nullptr || !attention->sinks.defined()) return;
  const auto query = heed::detail::sharing(*attention->fc_q).part();
  if (!query) return;
  const auto heads = attention->sinks.size(0), head_dim = query->size / heads;
  shards[joined(name, "sinks")] = {0, query->first / head_dim, heads, query->whole / head_dim};
}

/// Adds the shards of experts: all of a parameter, or nothing of it.
void add_experts(const std::string& name, const torch::nn::Module& module, TensorShards& shards) {
  const auto* experts = dynamic_cast<const detail::ShardedExpertsImpl*>(&module);
  if (experts == nullptr) return;
  const auto own = experts->own().named_parameters();
  for (size_t i = 0; i < experts->size(); ++i) {
    for (const auto& parameter : experts->ptr(i)->named_parameters()) {
      const auto full = fmt::format("{}.{}", i, parameter.key());
      shards[joined(name, full.c_str())] = {0, 0, parameter.value().size(0),
                                            own[parameter.key()].size(0)};
    }
  }
}

void add(const std::string& name, const torch::nn::Module& module, TensorShards& shards) {
  // A layer without this interface is whole; it may be one that heed's modules never call.
  const auto* sharing = dynamic_cast<const LayerSharing*>(&module);
  const auto part = sharing ? sharing->part() : std::nullopt;
  const auto* linear = module.as<torch::nn::Linear>();
  if (part) shards[joined(name, "weight")] = *part;
  if (part && linear && linear->bias.defined() && part->dim == 0) {
    shards[joined(name, "bias")] = *part;
  }
  add_sinks<MultiHeadAttentionImpl>(name, module, shards);
  add_sinks<GroupQueryAttentionImpl>(name, module, shards);
  add_experts(name, module, shards);
}

/// The gradients of a module's parameters, each once, by how many of the processes hold a number.
std::map<double, std::vector<at::Tensor>> checked_gradients(const torch::nn::Module& module,
                                                            double processes) {
  const auto shards = shards_of(module);
  const auto of_experts = detail::expert_parameters(module);
  std::map<double, std::vector<at::Tensor>> by_copies;
  heed::detail::SeenTensors seen;
  for (const auto& parameter : module.named_parameters()) {
    const auto& gradient = parameter.value().grad();
    if (!gradient.defined() || !seen.add(gradient)) continue;
    heed::detail::check_changed_gradient(
        kClip, gradient, [&] { return fmt::format("parameter {}", parameter.key()); });
    const auto shard = shards.find(parameter.key());
    auto copies = processes;
    if (of_experts.count(parameter.value().unsafeGetTensorImpl()) > 0) {
      copies = 1.0;
    } else if (shard != shards.end()) {
      copies *= static_cast<double>(shard->second.size) / static_cast<double>(shard->second.whole);
    }
    by_copies[copies].push_back(gradient);
  }
  return by_copies;
}

}  // namespace

TensorShards shards_of(const torch::nn::Module& module) {
  TensorShards shards;
  add("", module, shards);
  for (const auto& submodule : module.named_modules("", /*include_self=*/false)) {
    add(submodule.key(), *submodule.value(), shards);
  }
  return shards;
}

at::Tensor gather_shards(const at::Tensor& part, const TensorShard& shard,
                         const ProcessGroup& group) {
  constexpr auto kFunction = "gather_shards";
  HEED_CHECK(group, "{}: group must not be null", kFunction);
  HEED_CHECK(part.defined() && shard.dim >= 0 && shard.dim < part.dim() &&
                 part.size(shard.dim) == shard.size,
             "{}: part {} must have size {} in dim {}", kFunction,
             part.defined() ? c10::str(part.sizes()) : "undefined", shard.size, shard.dim);
  HEED_CHECK(
      shard.first >= 0 && shard.whole >= shard.size && shard.first <= shard.whole - shard.size,
      "{}: first ({}) must be from 0 to whole - size ({} - {})", kFunction, shard.first,
      shard.whole, shard.size);
  auto sizes = part.sizes().vec();
  sizes[static_cast<size_t>(shard.dim)] = shard.whole;
  heed::detail::check_memory(kFunction, "whole", sizes, part.scalar_type());
  return detail::run_exchange(group, kFunction, [&] {
    const auto places =
        detail::all_gather(group, kFunction, at::tensor({shard.first, shard.size}, at::kLong));
    const auto first = [&](size_t rank) { return places[rank][0].item<int64_t>(); };
    const auto size = [&](size_t rank) { return places[rank][1].item<int64_t>(); };
    auto whole = at::empty(sizes, part.options().requires_grad(false));
    bool even = true;
    for (size_t rank = 0; rank < places.size(); ++rank) even = even && size(rank) == size(0);
    if (even) {
      const auto parts = detail::all_gather(group, kFunction, part);
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        whole.narrow(shard.dim, first(rank), shard.size).copy_(parts[rank]);
      }
      return whole;
    }
    for (size_t rank = 0; rank < places.size(); ++rank) {
      if (size(rank) == 0) continue;
      const auto place = whole.narrow(shard.dim, first(rank), size(rank));
      const auto sent = static_cast<int64_t>(rank) == group->getRank()
                            ? part.detach().contiguous()
                            : at::empty(place.sizes(), place.options());
      detail::broadcast(group, kFunction, sent, static_cast<int64_t>(rank));
      place.copy_(sent);
    }
    return whole;
  });
}

double clip_grad_norm_(torch::nn::Module& module, double max_norm, const ProcessGroup& group) {
  HEED_CHECK(group, "{}: group must not be null", kClip);
  heed::detail::check_max_norm(kClip, max_norm);
  std::vector<at::Tensor> gradients;
  double squares = 0.0;
  std::string error;
  try {
    const auto by_copies = checked_gradients(module, static_cast<double>(group->getSize()));
    for (const auto& [copies, own] : by_copies) {
      // Each number counts once, however many processes hold it.
      const auto norm = heed::detail::norm_of(own);
      squares += norm * norm / copies;
      gradients.insert(gradients.end(), own.begin(), own.end());
    }
  } catch (const c10::ValueError& refused) {
    error = refused.what_without_backtrace();
  }
  // One operation adds up the squares, and counts the processes that have an error.
  const auto sums = at::tensor({squares, error.empty() ? 0.0 : 1.0}, at::kDouble);
  detail::all_reduce(group, kClip, sums);
  if (sums[1].item<double>() > 0.0) detail::throw_everywhere(group, kClip, error);
  const auto norm = std::sqrt(sums[0].item<double>());
  heed::detail::limit_norm(gradients, norm, max_norm);
  return norm;
}

}  // namespace heed::distributed
