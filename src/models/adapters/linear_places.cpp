// SPDX-License-Identifier: BSD-3-Clause
#include "models/adapters/linear_places.h"

#include <heed/attention.h>
#include <heed/decoder.h>
#include <heed/differential_attention.h>
#include <heed/feed_forward.h>
#include <heed/image_encoder.h>
#include <heed/latent_attention.h>
#include <heed/mixture_of_experts.h>
#include <heed/self_attention.h>
#include <heed/task_heads.h>
#include <heed/text_encoder.h>

#include <utility>

#include "modules/attentions/head_names.h"

namespace heed::detail {

namespace {

/// Adds the Linears that a module has itself.
class Places {
 public:
  Places(torch::nn::Module& owner, std::string prefix, std::map<std::string, LinearPlace>& all)
      : owner_(owner), prefix_(std::move(prefix)), all_(all) {}

  void add() {
    add_heads<MultiHeadAttentionImpl>();
    add_heads<GroupQueryAttentionImpl>();
    if (auto* own = owner_.as<AttentionImpl>()) {
      add_all({{"fc_q", &own->fc_q}, {"fc_k", &own->fc_k}, {"fc_v", &own->fc_v}});
    }
    if (auto* own = owner_.as<AttentionV1Impl>()) add_all({{"qkv", &own->qkv}});
    if (auto* own = owner_.as<SelfAttentionImpl>()) {
      add_all({{"values", &own->values},
               {"keys", &own->keys},
               {"queries", &own->queries},
               {"fc_out", &own->fc_out}});
    }
    if (auto* own = owner_.as<DifferentialAttentionImpl>()) {
      add_all({{"fc_q", &own->fc_q},
               {"fc_k", &own->fc_k},
               {"fc_v", &own->fc_v},
               {"fc_out", &own->fc_out}});
    }
    if (auto* own = owner_.as<LatentAttentionImpl>()) {  // fc_kv_up is multiplied from both sides
      add_all({{"fc_q", &own->fc_q},
               {"fc_q_down", &own->fc_q_down},
               {"fc_q_up", &own->fc_q_up},
               {"fc_kv_down", &own->fc_kv_down},
               {"fc_o", &own->fc_o}});
    }
    if (auto* own = owner_.as<FeedForwardImpl>()) {
      add_all({{"fc_in", &own->fc_in}, {"fc_gate", &own->fc_gate}, {"fc_out", &own->fc_out}});
    }
    add_outside_blocks();
  }

 private:
  template <typename Impl>
  void add_heads() {
    auto* own = owner_.as<Impl>();
    if (own == nullptr) return;
    add_all({{"fc_q", &own->fc_q},
             {"fc_k", &own->fc_k},
             {"fc_v", &own->fc_v},
             {HeadNames<Impl>::kOutput, &HeadNames<Impl>::output(*own)}});
  }

  void add_outside_blocks() {
    in_block_ = false;
    if (auto* own = owner_.as<MixtureOfExpertsImpl>()) {
      add_all({{"router", &own->router}, {"fc_shared_gate", &own->fc_shared_gate}});
    }
    if (auto* own = owner_.as<DecoderImpl>()) add_all({{"head", &own->head}});
    if (auto* own = owner_.as<TextEncoderImpl>()) {
      add_all(
          {{"embedding_projection", &own->embedding_projection}, {"projection", &own->projection}});
    }
    if (auto* own = owner_.as<ImageEncoderImpl>()) add_all({{"projection", &own->projection}});
    if (auto* own = owner_.as<HeadTransformImpl>()) add_all({{"dense", &own->dense}});
    if (auto* own = owner_.as<SequenceClassifierImpl>()) {
      add_all({{"classifier", &own->classifier}});
    }
    if (auto* own = owner_.as<TokenClassifierImpl>()) add_all({{"classifier", &own->classifier}});
  }

  void add_all(const std::vector<std::pair<const char*, torch::nn::Linear*>>& members) {
    for (const auto& [name, member] : members) {
      if (!member->is_empty()) all_[prefix_ + name] = {&owner_, name, member, in_block_};
    }
  }

  torch::nn::Module& owner_;
  const std::string prefix_;
  std::map<std::string, LinearPlace>& all_;
  bool in_block_ = true;
};

}  // namespace

void LinearPlace::put(const std::shared_ptr<torch::nn::LinearImpl>& layer) const {
  *member = owner->replace_module(name, layer);
}

std::map<std::string, LinearPlace> linear_places(torch::nn::Module& module) {
  std::map<std::string, LinearPlace> all;
  Places(module, "", all).add();
  // A module on the stack cannot be one of its own named_modules.
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    Places(*item.value(), item.key() + ".", all).add();
  }
  return all;
}

}  // namespace heed::detail
