#include <heed/distributed/parameter_shards.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/check_memory.h"
#include "core/seen_tensors.h"
#include "distributed/collectives.h"
#include "models/gradients.h"
#include "modules/layers/stand_in.h"

namespace heed::distributed {

namespace {

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
    const auto firsts = detail::all_gather(group, kFunction, at::full({1}, shard.first, at::kLong));
    const auto parts = detail::all_gather(group, kFunction, part);
    auto whole = at::empty(sizes, part.options().requires_grad(false));
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      whole.narrow(shard.dim, firsts[rank].item<int64_t>(), shard.size).copy_(parts[rank]);
    }
    return whole;
  });
}

double clip_grad_norm_(torch::nn::Module& module, double max_norm, const ProcessGroup& group) {
  constexpr auto kFunction = "clip_grad_norm_";
  HEED_CHECK(group, "{}: group must not be null", kFunction);
  heed::detail::check_max_norm(kFunction, max_norm);
  const auto shards = shards_of(module);
  const auto processes = static_cast<double>(group->getSize());
  std::map<double, std::vector<at::Tensor>> gradients_of;  // by how many processes hold a number
  std::vector<at::Tensor> gradients;
  heed::detail::SeenTensors seen;
  for (const auto& parameter : module.named_parameters()) {
    const auto& gradient = parameter.value().grad();
    if (!gradient.defined() || !seen.add(gradient)) continue;
    gradients.push_back(gradient);
    const auto shard = shards.find(parameter.key());
    const auto copies = shard == shards.end()
                            ? processes
                            : processes * static_cast<double>(shard->second.size) /
                                  static_cast<double>(shard->second.whole);
    gradients_of[copies].push_back(gradient);
  }
  double squares = 0.0;
  for (const auto& [copies, own] : gradients_of) {
    // Each number counts once, however many processes hold it.
    const auto norm = heed::detail::norm_of(own);
    squares += norm * norm / copies;
  }
  const auto sum = at::full({1}, squares, at::kDouble);
  detail::all_reduce(group, kFunction, sum);
  const auto norm = std::sqrt(sum.item<double>());
  heed::detail::limit_norm(gradients, norm, max_norm);
  return norm;
}

}  // namespace heed::distributed
