// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/distributed/process_group.h>
#include <heed/tensor_shard.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <unordered_set>
#include <vector>

#include "models/expert_sharing.h"

namespace heed::distributed::detail {

/// The experts of a mixture of which each process of a group has some.
class ShardedExpertsImpl : public torch::nn::ModuleListImpl, public heed::detail::ExpertSharing {
 public:
  /// Takes all experts, and keeps the numbers of those of `shard`. `id` is the same in the
  /// processes of the group alone.
  ShardedExpertsImpl(const torch::nn::ModuleListImpl& whole, const TensorShard& shard,
                     ProcessGroup group, int64_t id);

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

  TensorShard part() const override { return shard_; }
  at::Tensor run(const std::function<heed::detail::ExpertRows()>& prepare,
                 const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>&
                     compute) const override;

  /// An expert that this process has.
  const torch::nn::Module& own() const;
  const ProcessGroup& group() const { return group_; }
  int64_t id() const { return id_; }
  /// Whether the gradients of parameters are averages over the processes instead of sums.
  void average_gradients(bool average) { average_ = average; }

 private:
  at::Tensor announcement(const heed::detail::ExpertRows& rows, bool failed) const;

  const TensorShard shard_;
  const ProcessGroup group_;
  const int64_t id_;
  bool average_ = false;
};

/// A module's lists of such experts, with their names.
struct NamedExperts {
  std::string name;
  std::shared_ptr<ShardedExpertsImpl> experts;
};
std::vector<NamedExperts> sharded_experts_of(const torch::nn::Module& module);

/// Throws if such experts are split among other processes than those of `group`, as far as sizes
/// and ranks tell.
void check_experts_group(const char* function, const torch::nn::Module& module,
                         const ProcessGroup& group);

/// The parameters of such experts.
std::unordered_set<const at::TensorImpl*> expert_parameters(const torch::nn::Module& module);

}  // namespace heed::distributed::detail
