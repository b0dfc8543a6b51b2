// SPDX-License-Identifier: BSD-3-Clause
#include <heed/attention.h>
#include <heed/differential_attention.h>
#include <heed/distributed/context_parallel.h>
#include <heed/latent_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/self_attention.h>
#include <heed/transformer.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.h"

namespace heed::distributed {

namespace {

constexpr auto kShare = "share_sequence";

class GroupSequence : public SharedSequence {
 public:
  GroupSequence(ProcessGroup group, SequenceExchange exchange)
      : group_(std::move(group)), exchange_(exchange) {}

  at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const AttendOptions& options) const override {
    return exchange_ == SequenceExchange::ring ? ring_attend(query, key, value, group_, options)
                                               : ulysses_attend(query, key, value, group_, options);
  }

  at::Tensor shard(const at::Tensor& tensor, int64_t dim) const override {
    return shard_sequence(tensor, dim, group_);
  }

  int64_t processes() const override { return group_->getSize(); }

 private:
  const ProcessGroup group_;
  const SequenceExchange exchange_;
};

using Slot = std::shared_ptr<const SharedSequence>;

template <typename Impl>
void refuse(const std::string& name, const torch::nn::Module& module, const char* kind) {
  HEED_CHECK(dynamic_cast<const Impl*>(&module) == nullptr,
             "{}: {}{}module must not be or contain {}", kShare, name, name.empty() ? "" : ": ",
             kind);
}

/// The members in which the self-attentions of a module keep their shared sequence.
std::vector<Slot*> self_attentions(torch::nn::Module& module) {
  std::unordered_set<const torch::nn::Module*> cross_attentions;
  for (const auto& submodule : module.modules()) {
    const auto* block = submodule->as<TransformerBlock>();
    if (block != nullptr && block->cross_attention) {
      cross_attentions.insert(block->cross_attention.get());
    }
  }
  std::vector<Slot*> found;
  module.apply([&](const std::string& name, torch::nn::Module& submodule) {
    refuse<AttentionImpl>(name, submodule, "Attention");
    refuse<AttentionV1Impl>(name, submodule, "AttentionV1");
    refuse<SelfAttentionImpl>(name, submodule, "SelfAttention");
    refuse<LatentAttentionImpl>(name, submodule, "LatentAttention");
    refuse<DifferentialAttentionImpl>(name, submodule, "DifferentialAttention");
    if (cross_attentions.count(&submodule) > 0) return;
    if (auto* attention = submodule.as<MultiHeadAttention>()) {
      found.push_back(&attention->shared_sequence);
    }
    if (auto* attention = submodule.as<GroupQueryAttention>()) {
      found.push_back(&attention->shared_sequence);
    }
  });
  HEED_CHECK(!found.empty(), "{}: module must contain a MultiHeadAttention or GroupQueryAttention",
             kShare);
  return found;
}

}  // namespace

void share_sequence(torch::nn::Module& module, const ProcessGroup& group,
                    SequenceExchange exchange) {
  const auto attentions = self_attentions(module);
  const bool shares = group && group->getSize() > 1;
  const auto sequence = shares ? std::make_shared<GroupSequence>(group, exchange) : nullptr;
  for (auto* slot : attentions) *slot = sequence;
}

}  // namespace heed::distributed
