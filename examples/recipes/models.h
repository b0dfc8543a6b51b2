// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/heed.h>
#include <torch/torch.h>

#include <vector>

namespace recipes {

/// A Perceiver's encoder: a few latents attend to many inputs, then to each other.
class PerceiverImpl : public torch::nn::Module {
 public:
  PerceiverImpl(int64_t latent_count, int64_t latent_dim, int64_t input_dim, int64_t cross_heads,
                const heed::EncoderOptions& layers, int64_t repeats)
      : repeats(repeats) {
    latents = register_parameter("latents", torch::randn({latent_count, latent_dim}));
    auto options = heed::MultiHeadAttentionOptions(latent_dim, cross_heads).dropout(0);
    options.key_emb_dim(input_dim).value_emb_dim(input_dim).head_dim(input_dim / cross_heads);
    cross = register_module("cross", heed::MultiHeadAttention(options));
    latent_norm = register_module("latent_norm", heed::Norm(latent_dim));
    input_norm = register_module("input_norm", heed::Norm(input_dim));
    norm = register_module("norm", heed::Norm(latent_dim));
    auto hidden = heed::FeedForwardOptions(latent_dim).hidden_dim(latent_dim);
    feed_forward = register_module("feed_forward", heed::FeedForward(hidden));
    stack = register_module("stack", heed::Encoder(layers));
  }

  /// inputs [B, S, C]; mask [B, S], true = may be seen; returns [B, latents, E].
  at::Tensor forward(const at::Tensor& inputs, const at::Tensor& mask) {
    auto x = latents.expand({inputs.size(0), -1, -1}), memory = input_norm(inputs);
    x = x + cross(latent_norm(x), memory, memory, heed::key_padding_mask(mask));
    x = x + feed_forward(norm(x));
    for (int64_t i = 0; i < repeats; ++i) x = stack(x);  // with the same weights
    return x;
  }

  int64_t repeats;
  at::Tensor latents;
  heed::MultiHeadAttention cross{nullptr};
  heed::Norm latent_norm{nullptr}, input_norm{nullptr}, norm{nullptr};
  heed::FeedForward feed_forward{nullptr};
  heed::Encoder stack{nullptr};
};
TORCH_MODULE(Perceiver);

inline Perceiver make_perceiver() {
  auto block = heed::TransformerBlockOptions(heed::GroupQueryAttentionOptions(32, 4, 4))
                   .feed_forward(heed::FeedForwardOptions(32).hidden_dim(32));
  auto layers = heed::EncoderOptions(block, /*num_self_attends_per_block*/ 2).final_norm(false);
  return Perceiver(/*latent_count=*/6, /*latent_dim=*/32, /*input_dim=*/24, /*cross_heads=*/2,
                   layers, /*num_blocks*/ 2);
}

inline heed::NameMap perceiver_names() {
  const std::string cross = "encoder.cross_attention.";
  return heed::NameMap()
      .rename(cross + "attention.self.layernorm1", "latent_norm")
      .rename(cross + "attention.self.layernorm2", "input_norm")
      .rename(cross + "attention.self.query", "cross.fc_q")
      .rename(cross + "attention.self.key", "cross.fc_k")
      .rename(cross + "attention.self.value", "cross.fc_v")
      .rename(cross + "attention.output.dense", "cross.fc_out")
      .rename(cross + "layernorm", "norm")
      .rename(cross + "mlp.dense1", "feed_forward.fc_in")
      .rename(cross + "mlp.dense2", "feed_forward.fc_out")
      .rename("attention.self.layernorm1", "attention_norm")
      .rename("attention.self.query", "attention.fc_q")
      .rename("attention.self.key", "attention.fc_k")
      .rename("attention.self.value", "attention.fc_v")
      .rename("attention.output.dense", "attention.fc_o")
      .rename("layernorm", "feed_forward_norm")
      .rename("mlp.dense1", "feed_forward.fc_in")
      .rename("mlp.dense2", "feed_forward.fc_out")
      .inside("encoder.self_attends", "stack.blocks");
}

/// Longformer's attention: a window, and global tokens with projections of their own.
class LongformerAttentionImpl : public torch::nn::Module {
 public:
  LongformerAttentionImpl(int64_t emb_dim, int64_t heads, int64_t attention_window)
      : heads(heads), reach(attention_window / 2) {
    auto linear = [&](const char* name) {
      return register_module(name, torch::nn::Linear(emb_dim, emb_dim));
    };
    query = linear("query"), key = linear("key"), value = linear("value");
    query_global = linear("query_global"), key_global = linear("key_global");
    value_global = linear("value_global");
  }

  /// x [B, L, E]; is_global [L], bool; returns [B, L, E].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& is_global) {
    auto options = heed::AttendOptions().left_window(reach).right_window(reach);
    options.global_tokens(is_global);
    auto y = heed::multi_head_attention(query(x), key(x), value(x), heads, options);
    // A global token has other projections, and sees everything.
    auto rows = is_global.nonzero().squeeze(1);
    auto global_query = query_global(x.index_select(1, rows));
    auto seen = heed::multi_head_attention(global_query, key_global(x), value_global(x), heads);
    return y.index_copy(1, rows, seen);
  }

  int64_t heads, reach;
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, query_global{nullptr},
      key_global{nullptr}, value_global{nullptr};
};
TORCH_MODULE(LongformerAttention);

/// Mixtral's mixture of experts.
inline heed::MixtureOfExperts make_mixture() {
  auto expert = heed::FeedForwardOptions(/*emb_dim=*/32).hidden_dim(48).bias(false);
  expert.activation(heed::Activation::swiglu);
  heed::MixtureOfExpertsOptions options(expert, /*expert_num=*/4, /*top_k=*/2);
  return heed::MixtureOfExperts(options);
}

/// The names of published files.
inline heed::NameMap mixture_names() {
  return heed::NameMap()
      .rename("gate", "router")
      .inside("w1", "fc_gate")
      .inside("w3", "fc_in")
      .inside("w2", "fc_out");
}

/// Reads tokens [B, L] one by one, and returns the scores [B, L, V]. The model's layers have a
/// window: a cache evicts keys that no later query sees, so its memory stays the same however long
/// the text is.
inline at::Tensor read_one_by_one(heed::Decoder& model, const at::Tensor& tokens, int64_t window) {
  torch::NoGradGuard no_grad;
  model->eval();
  auto caches = model->make_caches(tokens.size(0), /*capacity=*/2 * window);
  std::vector<at::Tensor> scores;
  for (const auto& token : tokens.split(1, 1)) {
    scores.push_back(model->forward_cached(token, caches));
  }
  return torch::cat(scores, 1);
}

}  // namespace recipes
