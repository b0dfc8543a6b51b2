// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/heed.h>
#include <torch/torch.h>

#include <cmath>

/// The recipes of docs/recipes.md. tests/examples/recipes_test.cpp compares them with Python.
namespace recipes {

/// T5's encoder.
class T5EncoderImpl : public torch::nn::Module {
 public:
  T5EncoderImpl() {
    auto attention = heed::GroupQueryAttentionOptions(/*d_model*/ 32, /*num_heads*/ 4, 4)
                         .head_dim(16)  // d_kv
                         .scale(1.0)
                         .input_bias(false)
                         .output_bias(false);
    auto feed_forward =
        heed::FeedForwardOptions(32).hidden_dim(64).activation(heed::Activation::relu).bias(false);
    auto block = heed::TransformerBlockOptions(attention)
                     .feed_forward(feed_forward)
                     .norm(heed::NormKind::rms_norm)
                     .norm_eps(1e-6);
    embedding = register_module("embedding", torch::nn::Embedding(/*vocab_size*/ 50, 32));
    bias = register_module("bias", heed::RelativePositionBias(/*head_num=*/4));
    stack = register_module("stack", heed::Encoder(heed::EncoderOptions(block, 2)));
  }

  /// tokens [B, L]; returns [B, L, E]. All layers have one bias.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& mask) {
    auto table = bias->relative().relative_bias;  // [H, 2 R + 1]
    return stack(embedding(tokens), heed::TransformerInputs(mask).relative_bias(table));
  }

  torch::nn::Embedding embedding{nullptr};
  heed::RelativePositionBias bias{nullptr};
  heed::Encoder stack{nullptr};
};
TORCH_MODULE(T5Encoder);

inline heed::NameMap t5_names() {
  return heed::NameMap()
      .tied("encoder.embed_tokens", {"shared"})
      .rename("shared", "embedding")
      .rename("encoder.block.0.layer.0.SelfAttention.relative_attention_bias", "bias")
      .rename("layer.0.SelfAttention.q", "attention.fc_q")
      .rename("layer.0.SelfAttention.k", "attention.fc_k")
      .rename("layer.0.SelfAttention.v", "attention.fc_v")
      .rename("layer.0.SelfAttention.o", "attention.fc_o")
      .rename("layer.0.layer_norm", "attention_norm")
      .rename("layer.1.DenseReluDense.wi", "feed_forward.fc_in")
      .rename("layer.1.DenseReluDense.wo", "feed_forward.fc_out")
      .rename("layer.1.layer_norm", "feed_forward_norm")
      .rename("encoder.final_layer_norm", "stack.final_norm")
      .inside("encoder.block", "stack.blocks");
}

inline at::Tensor attend_with_alibi(const at::Tensor& query, const at::Tensor& key,
                                    const at::Tensor& value) {
  auto options = heed::AttendOptions().causal(true);
  return heed::attend(query, key, value, options.alibi_slopes(heed::alibi_slopes(query.size(1))));
}

/// A Conformer's attention, with Transformer-XL's relative positions.
class ConformerAttentionImpl : public torch::nn::Module {
 public:
  ConformerAttentionImpl(int64_t emb_dim, int64_t heads) : heads(heads) {
    auto linear = [&](const char* name, bool bias) {
      auto options = torch::nn::LinearOptions(emb_dim, emb_dim).bias(bias);
      return register_module(name, torch::nn::Linear(options));
    };
    linear_q = linear("linear_q", true);
    linear_k = linear("linear_k", true);
    linear_v = linear("linear_v", true);
    linear_out = linear("linear_out", true);
    linear_pos = linear("linear_pos", false);
    pos_bias_u = register_parameter("pos_bias_u", torch::zeros({heads, emb_dim / heads}));
    pos_bias_v = register_parameter("pos_bias_v", torch::zeros({heads, emb_dim / heads}));
  }

  /// x [B, L, E]; returns [B, L, E].
  at::Tensor forward(const at::Tensor& x) {
    auto split = [&](const at::Tensor& y) { return y.unflatten(2, {heads, -1}).transpose(1, 2); };
    auto query = split(linear_q(x)), key = split(linear_k(x)), value = split(linear_v(x));
    // A score for each distance from L - 1 to 1 - L, then for each key.
    auto distances = split(linear_pos(sinusoids(x)));
    auto scores = (query + pos_bias_v.unsqueeze(1)).matmul(distances.transpose(2, 3));
    auto token = torch::arange(x.size(1), x.options().dtype(torch::kLong));
    auto place = token - token.unsqueeze(1) + x.size(1) - 1;  // [L, L]
    auto bias = scores.gather(3, place.expand({x.size(0), heads, -1, -1}));
    auto options = heed::AttendOptions().bias(bias / std::sqrt(query.size(3)));
    auto attended = heed::attend(query + pos_bias_u.unsqueeze(1), key, value, options);
    return linear_out(attended.transpose(1, 2).flatten(2));
  }

  int64_t heads;
  torch::nn::Linear linear_q{nullptr}, linear_k{nullptr}, linear_v{nullptr}, linear_out{nullptr},
      linear_pos{nullptr};
  at::Tensor pos_bias_u, pos_bias_v;

 private:
  /// [1, 2 L - 1, E]
  static at::Tensor sinusoids(const at::Tensor& x) {
    auto length = x.size(1), width = x.size(2);
    auto distance = torch::arange(length - 1, -length, -1, x.options()).unsqueeze(1);
    auto angle =
        distance * (torch::arange(0, width, 2, x.options()) * (-std::log(1e4) / width)).exp();
    return torch::stack({angle.sin(), angle.cos()}, 2).flatten(1).unsqueeze(0);
  }
};
TORCH_MODULE(ConformerAttention);

}  // namespace recipes
