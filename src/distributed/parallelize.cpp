// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Context.h>
#include <heed/attention.h>
#include <heed/decoder.h>
#include <heed/differential_attention.h>
#include <heed/distributed/parallel_linear.h>
#include <heed/distributed/parallelize.h>
#include <heed/distributed/parameter_shards.h>
#include <heed/latent_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/residual_attention.h>
#include <heed/self_attention.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "distributed/collectives.h"
#include "distributed/differentiable.h"
#include "distributed/even_shard.h"
#include "distributed/split_modules.h"
#include "distributed/vocab_parallel_embedding.h"
#include "modules/attentions/head_names.h"

namespace heed::distributed {

namespace {

using detail::Submodule;
using heed::detail::HeadNames;

constexpr auto kParallelize = "parallelize";

/// A Norm whose inputs differ between processes, so that the gradients of its parameters are
/// summed: always, or where the sequence is split.
class SummedNormImpl : public NormImpl {
 public:
  SummedNormImpl(const NormImpl& whole, ProcessGroup group, bool always)
      : NormImpl(whole), group_(std::move(group)), always_(always) {}

  at::Tensor forward(const at::Tensor& x) override {
    if (!always_ && WholeSequence::is_active()) return NormImpl::forward(x);
    return normalize(x, detail::sum_gradient(weight, group_, "Norm"),
                     bias.defined() ? detail::sum_gradient(bias, group_, "Norm") : bias);
  }

 private:
  const ProcessGroup group_;
  const bool always_;
};

/// Turns a shard of heads into one of numbers, of which each head has `size`.
TensorShard times(const TensorShard& heads, int64_t size, int64_t dim = 0) {
  return {dim, heads.first * size, heads.size * size, heads.whole * size};
}

at::Tensor random_state() {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

class Parallelization {
 public:
  Parallelization(ProcessGroup group, const ParallelizeOptions& options)
      : group_(std::move(group)), sequence_parallel_(options.sequence_parallel()) {}

  /// Throws if a submodule cannot be split; changes nothing.
  void check(const Submodule& submodule) {
    const auto function =
        submodule.name.empty() ? kParallelize : fmt::format("{}: {}", kParallelize, submodule.name);
    refuse<AttentionImpl>(function, submodule, "Attention");
    refuse<AttentionV1Impl>(function, submodule, "AttentionV1");
    refuse<SelfAttentionImpl>(function, submodule, "SelfAttention");
    refuse<LatentAttentionImpl>(function, submodule, "LatentAttention");
    refuse<DifferentialAttentionImpl>(function, submodule, "DifferentialAttention");
    // ResidualAttention's LayerNorm would see a part of the sequence.
    if (sequence_parallel_) refuse<ResidualAttentionImpl>(function, submodule, "ResidualAttention");
    // A part of the sequence would train the router, or a layer of the user's, in each process.
    if (sequence_parallel_) refuse<MixtureOfExpertsImpl>(function, submodule, "MixtureOfExperts");
    check_own_layer(function, submodule);
    HEED_CHECK(dynamic_cast<const LinearStandIn*>(submodule.module) == nullptr,
               "{}: module must not be a layer in a Linear's place, such as one with an adapter",
               function);
    check_attention<MultiHeadAttentionImpl>(function, submodule);
    check_attention<GroupQueryAttentionImpl>(function, submodule);
    if (const auto* layer = dynamic_cast<const FeedForwardImpl*>(submodule.module)) {
      even(function, "hidden_dim", layer->fc_in->weight.size(0));
      take(function, layer->parameters());
    }
    if (const auto* model = dynamic_cast<const DecoderImpl*>(submodule.module)) {
      even(function, "vocab_size", model->token_embedding->weight.size(0));
      take(function, model->token_embedding->parameters());
      if (model->head) take(function, model->head->parameters());
    }
  }

  void split(torch::nn::Module& module) const {
    if (auto* mha = dynamic_cast<MultiHeadAttentionImpl*>(&module)) split_attention(*mha);
    if (auto* gqa = dynamic_cast<GroupQueryAttentionImpl*>(&module)) split_attention(*gqa);
    if (auto* layer = dynamic_cast<FeedForwardImpl*>(&module)) split_feed_forward(*layer);
    if (auto* block = dynamic_cast<TransformerBlockImpl*>(&module)) split_block(*block);
    if (auto* model = dynamic_cast<DecoderImpl*>(&module)) split_vocabulary(*model);
  }

 private:
  TensorShard even(const std::string& function, const char* name, int64_t whole) const {
    return detail::even_shard(function.c_str(), name, whole, 0, group_);
  }

  template <typename Impl>
  void refuse(const std::string& function, const Submodule& submodule, const char* name) const {
    HEED_CHECK(dynamic_cast<const Impl*>(submodule.module) == nullptr,
               "{}: module must not be or contain {}{}", function, name,
               sequence_parallel_ ? " with sequence_parallel" : "");
  }

  void check_own_layer(const std::string& function, const Submodule& submodule) const {
    const auto* block = dynamic_cast<const TransformerBlockImpl*>(submodule.module);
    if (block == nullptr) return;
    const auto refuse_option = [&](bool is_given, const char* what) {
      HEED_CHECK(!is_given || !sequence_parallel_, "{}: {} with sequence_parallel", function, what);
    };
    refuse_option(block->options.has_own_feed_forward(),
                  "feed_forward must not be a layer of your own");
    refuse_option(block->options.has_own_norm(), "norm must not be a layer of your own");
    // The memory is whole in each process, and the gradient of its norm would be summed too often.
    refuse_option(block->options.memory_norm(), "memory_norm must be false");
  }

  /// Throws if another layer has one of the parameters, which would then be split twice.
  void take(const std::string& function, const std::vector<at::Tensor>& parameters) {
    for (const auto& parameter : parameters) {
      HEED_CHECK(taken_.insert(parameter.unsafeGetTensorImpl()).second,
                 "{}: parameters must not be those of another layer too", function);
    }
  }

  template <typename Impl>
  void check_attention(const std::string& function, const Submodule& submodule) {
    const auto* attention = dynamic_cast<const Impl*>(submodule.module);
    if (attention == nullptr) return;
    const auto& sizes = attention->head_sizes;
    even(function, HeadNames<Impl>::kHeads, sizes.heads);
    const int64_t size = group_->getSize();
    HEED_CHECK(sizes.groups % size == 0 || size % sizes.groups == 0,
               "{}: group_num ({}) must be a multiple or a divisor of the number of processes ({})",
               function, sizes.groups, size);
    const auto& norm = attention->options.qk_norm();
    HEED_CHECK(!norm || !norm->across_heads(),
               "{}: qk_norm must not be across_heads: a process would see a part of the heads",
               function);
    take(function, attention->parameters());
  }

  /// This process's key/value heads. If there are fewer than processes, several processes hold
  /// each.
  TensorShard own_groups(int64_t groups) const {
    const int64_t size = group_->getSize();
    if (groups % size == 0) return even(kParallelize, "group_num", groups);
    return {0, group_->getRank() * groups / size, 1, groups};
  }

  template <typename Layer>
  void replace(torch::nn::Module& parent, const char* name, torch::nn::Linear& linear,
               const TensorShard& shard, bool sequence_parallel) const {
    const std::shared_ptr<torch::nn::LinearImpl> layer =
        std::make_shared<Layer>(*linear, shard, group_, sequence_parallel);
    linear = parent.replace_module(name, layer);
  }

  void replace_norm(torch::nn::Module& parent, const char* name, Norm& norm, bool always) const {
    if (!norm) return;
    const std::shared_ptr<NormImpl> summed =
        std::make_shared<SummedNormImpl>(*norm, group_, always);
    norm = parent.replace_module(name, summed);
  }

  template <typename Impl>
  void split_attention(Impl& attention) const {
    using Column = ColumnParallelLinearImpl;
    const auto sizes = attention.head_sizes;
    const auto heads = even(kParallelize, HeadNames<Impl>::kHeads, sizes.heads);
    const auto groups = own_groups(sizes.groups);
    replace<Column>(attention, "fc_q", attention.fc_q, times(heads, sizes.head_dim),
                    sequence_parallel_);
    replace<Column>(attention, "fc_k", attention.fc_k, times(groups, sizes.head_dim),
                    sequence_parallel_);
    replace<Column>(attention, "fc_v", attention.fc_v, times(groups, sizes.value_head_dim),
                    sequence_parallel_);
    replace<RowParallelLinearImpl>(attention, HeadNames<Impl>::kOutput,
                                   HeadNames<Impl>::output(attention),
                                   times(heads, sizes.value_head_dim, 1), sequence_parallel_);
    if (attention.sinks.defined()) heed::detail::keep_shard(attention.sinks, heads);
    if (attention.alibi_slopes.defined()) heed::detail::keep_shard(attention.alibi_slopes, heads);
    replace_norm(attention, "q_norm", attention.q_norm, /*always=*/true);
    replace_norm(attention, "k_norm", attention.k_norm, /*always=*/true);
    attention.options.head_dim(sizes.head_dim);
    HeadNames<Impl>::set(attention.options, heads.size, groups.size);
    attention.head_sizes = {heads.size, groups.size, sizes.head_dim, sizes.value_head_dim};
  }

  void split_feed_forward(FeedForwardImpl& layer) const {
    const auto hidden = even(kParallelize, "hidden_dim", layer.fc_in->weight.size(0));
    using Column = ColumnParallelLinearImpl;
    replace<Column>(layer, "fc_in", layer.fc_in, hidden, sequence_parallel_);
    if (layer.fc_gate) {
      replace<Column>(layer, "fc_gate", layer.fc_gate, hidden, sequence_parallel_);
    }
    replace<RowParallelLinearImpl>(layer, "fc_out", layer.fc_out, times(hidden, 1, 1),
                                   sequence_parallel_);
    layer.options.hidden_dim(hidden.size);
  }

  void split_block(TransformerBlockImpl& block) const {
    if (!sequence_parallel_) return;
    const auto summed = [&](const char* name, Norm& norm) {
      replace_norm(block, name, norm, /*always=*/false);
    };
    summed("attention_norm", block.attention_norm);
    summed("attention_output_norm", block.attention_output_norm);
    summed("cross_attention_norm", block.cross_attention_norm);
    summed("cross_attention_output_norm", block.cross_attention_output_norm);
    summed("feed_forward_norm", block.feed_forward_norm);
    summed("feed_forward_output_norm", block.feed_forward_output_norm);
  }

  void split_vocabulary(DecoderImpl& model) const {
    const auto rows = even(kParallelize, "vocab_size", model.token_embedding->weight.size(0));
    const std::shared_ptr<torch::nn::EmbeddingImpl> embedding =
        std::make_shared<detail::VocabParallelEmbeddingImpl>(*model.token_embedding, rows, group_);
    model.token_embedding = model.replace_module("token_embedding", embedding);
    // The head is not sequence-parallel, because the stack returns whole sequences.
    if (model.head) {
      replace<ColumnParallelLinearImpl>(model, "head", model.head, rows,
                                        /*sequence_parallel=*/false);
    }
  }

  const ProcessGroup group_;
  const bool sequence_parallel_;
  std::unordered_set<const at::TensorImpl*> taken_;
};

}  // namespace

void parallelize(torch::nn::Module& module, const ProcessGroup& group,
                 const ParallelizeOptions& options) {
  HEED_CHECK(group, "{}: group must not be null", kParallelize);
  detail::check_same(group, kParallelize, "module", [&] {
    return fmt::format("sequence_parallel={}\n", options.sequence_parallel()) +
           detail::description(module);
  });
  // Dropout of tensors that all processes hold must draw the same numbers in all of them.
  if (module.is_training()) {
    detail::check_same(group, kParallelize, "state of torch::manual_seed's generator",
                       fmt::format("{:x}", detail::checksum(random_state())));
  }
  HEED_CHECK(shards_of(module).empty(), "{}: module must not be split already", kParallelize);
  const auto submodules = detail::submodules_of(module);
  Parallelization parallelization(group, options);
  for (const auto& submodule : submodules) parallelization.check(submodule);
  if (group->getSize() == 1) return;
  for (const auto& submodule : submodules) parallelization.split(*submodule.module);
}

}  // namespace heed::distributed
