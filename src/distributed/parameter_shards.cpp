#include "distributed/parameter_shards.h"

#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/sharded_layers.h>

namespace heed::distributed::detail {

namespace {

using Shards = std::map<std::string, TensorShard>;

std::string joined(const std::string& module, const char* name) {
  return module.empty() ? name : module + "." + name;
}

/// Sinks are split as the query heads.
template <typename Attention>
void add_sinks(const std::string& name, const torch::nn::Module& module, Shards& shards) {
  const auto* attention = dynamic_cast<const Attention*>(&module);
  if (attention == nullptr || !attention->sinks.defined()) return;
  const auto* query = dynamic_cast<const ShardedLinearImpl*>(attention->fc_q.get());
  if (query == nullptr) return;
  const auto heads = attention->sinks.size(0), head_dim = query->shard.size / heads;
  shards[joined(name, "sinks")] = {0, query->shard.first / head_dim, heads,
                                   query->shard.whole / head_dim};
}

void add(const std::string& name, const torch::nn::Module& module, Shards& shards) {
  if (const auto* linear = dynamic_cast<const ShardedLinearImpl*>(&module)) {
    shards[joined(name, "weight")] = linear->shard;
    if (linear->bias.defined() && linear->shard.dim == 0) {
      shards[joined(name, "bias")] = linear->shard;
    }
  }
  if (const auto* embedding = dynamic_cast<const ShardedEmbeddingImpl*>(&module)) {
    shards[joined(name, "weight")] = embedding->shard;
  }
  add_sinks<MultiHeadAttentionImpl>(name, module, shards);
  add_sinks<GroupQueryAttentionImpl>(name, module, shards);
}

}  // namespace

Shards shards_of(const torch::nn::Module& module) {
  Shards shards;
  add("", module, shards);
  for (const auto& part : module.named_modules("", /*include_self=*/false)) {
    add(part.key(), *part.value(), shards);
  }
  return shards;
}

}  // namespace heed::distributed::detail
