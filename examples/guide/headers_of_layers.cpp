// SPDX-License-Identifier: BSD-3-Clause
#include <memory>

#include "guide.h"

namespace guide {

/// One function for each header, with the examples in its comments.
namespace header {

namespace {

class Doubled : public heed::FeedForwardImpl {
 public:
  using heed::FeedForwardImpl::FeedForwardImpl;
  at::Tensor forward(const at::Tensor& x) override { return 2 * FeedForwardImpl::forward(x); }
};

void feed_forward_of_ones_own() {
  heed::TransformerBlock block(heed::GroupQueryAttentionOptions(64, 4, 2));
  std::shared_ptr<heed::FeedForwardImpl> mine = std::make_shared<Doubled>(/*emb_dim=*/64);
  block->feed_forward = block->replace_module("feed_forward", mine);
  auto y = block->forward(torch::randn({2, 10, 64}));
}

/// A layer of one's own: x * tanh(fc(x)).
class MyLayerImpl : public torch::nn::Cloneable<MyLayerImpl> {
 public:
  explicit MyLayerImpl(int64_t width) : width(width) { reset(); }
  void reset() override { fc = register_module("fc", torch::nn::Linear(width, width)); }
  at::Tensor forward(const at::Tensor& x) { return x * heed::linear(fc, x).tanh(); }

  int64_t width;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(MyLayer);

void feed_forward_layers() {
  heed::TransformerBlockOptions block(heed::GroupQueryAttentionOptions(64, 4, 2));
  block.feed_forward([] { return torch::nn::AnyModule(MyLayer(64)); });
  heed::TransformerBlock own(block);
  std::cout << "own layer: " << own->forward(torch::randn({2, 10, 64})).sizes() << '\n';
}

/// A norm of one's own: x / (1 + the largest |x|), times a weight.
class MyNormImpl : public torch::nn::Cloneable<MyNormImpl> {
 public:
  explicit MyNormImpl(int64_t width) : width(width) { reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({width})); }
  at::Tensor forward(const at::Tensor& x) {
    return x / (1 + x.abs().amax(-1, /*keepdim=*/true)) * weight;
  }

  int64_t width;
  at::Tensor weight;
};
TORCH_MODULE(MyNorm);

void norms_and_memories() {
  heed::TransformerBlockOptions options(heed::GroupQueryAttentionOptions(64, 4, 2));
  auto configure = [](heed::TransformerBlockOptions& block) {
    block.norm([] { return torch::nn::AnyModule(MyNorm(64)); });
    heed::GroupQueryAttentionOptions cross(/*emb_dim=*/64, /*head_num=*/8, /*group_num=*/8);
    block.cross_attention(cross.key_emb_dim(96).value_emb_dim(96));  // memory [B, S, 96]
  };
  configure(options);
  heed::TransformerBlock block(options);
  auto* norm = block->norm_module("attention_norm")->as<MyNorm>();
  auto memory = heed::TransformerInputs().memory(torch::randn({2, 5, 96}));
  auto y = block->forward(torch::randn({2, 10, 64}), memory);
  std::cout << "own norm: " << norm->weight.sizes() << ' ' << y.sizes() << '\n';
}

void attention_layers() {
  heed::TransformerBlockOptions block(heed::GroupQueryAttentionOptions(64, 4, 2));
  heed::LatentAttentionOptions latent(/*emb_dim=*/64, /*head_num=*/4, /*key_rank=*/16);
  block.attention(latent);
  heed::TransformerBlock own(block);
  auto y = own->forward(torch::randn({2, 10, 64}));
}

void latent_attention_in_a_block() {
  heed::TransformerBlock block(heed::LatentAttentionOptions(64, 4, 16));
  auto* latent = block->attention_module()->as<heed::LatentAttention>();
  latent->reset_parameters();
}

void mixture_of_experts() {
  auto expert = heed::FeedForwardOptions(64).hidden_dim(96).activation(heed::Activation::swiglu);
  heed::MixtureOfExpertsOptions options(expert, /*expert_num=*/8, /*top_k=*/2);
  heed::MixtureOfExperts layer(options);
  auto y = layer->forward(torch::randn({2, 10, 64}));  // [B, L, E]
}

void mixture_in_a_block() {
  heed::TransformerBlockOptions options(heed::GroupQueryAttentionOptions(64, 4, 2));
  heed::TransformerBlock block(options.feed_forward(heed::MixtureOfExpertsOptions(64, 8, 2)));
  auto* mixture = block->feed_forward_module()->as<heed::MixtureOfExperts>();
  std::cout << "experts: " << mixture->experts->size() << '\n';
}

void feed_forward() {
  auto options = heed::FeedForwardOptions(64).activation(heed::Activation::swiglu);
  heed::FeedForward layer(options);
  auto y = layer->forward(torch::randn({2, 10, 64}));  // [B, L, E]
}

void norm() {
  heed::Norm norm(heed::NormOptions(/*dim=*/64).kind(heed::NormKind::rms_norm));
  auto y = norm->forward(torch::randn({2, 10, 64}));
}

void position_embedding() {
  heed::PositionEmbedding positions(/*emb_dim=*/64);
  auto y = positions->forward(torch::randn({2, 10, 64}));  // [B, L, E]
}

void qk_norm() {
  auto norm = heed::QkNormOptions().kind(heed::NormKind::layer_norm);
  auto options = heed::GroupQueryAttentionOptions(64, 4, 2).qk_norm(norm);
  heed::GroupQueryAttention attention(options);
}

void relative_position_bias() {
  heed::RelativePositionBias bias(/*head_num=*/4);
  auto [table, positions] = bias->relative();
  auto options = heed::AttendOptions().relative_bias(table).relative_positions(positions);
  auto x = torch::randn({2, 4, 10, 16});
  auto output = heed::attend(x, x, x, options);
}

void transformer_block() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
  heed::TransformerBlock block(heed::TransformerBlockOptions(attention).dropout(0.1));
  auto y = block->forward(torch::randn({2, 10, 64}));  // [B, L, E]
}

void transformer_inputs() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
  heed::Decoder decoder(heed::DecoderOptions(/*vocab_size=*/100, attention, /*num_layers=*/2));
  auto tokens = torch::randint(100, {2, 10}), positions = torch::arange(10).remainder(5);
  auto documents = torch::arange(10).floor_divide(5);
  auto inputs = heed::TransformerInputs().documents(documents).positions(positions);
  auto scores = decoder->forward(tokens, inputs);
}

void encoder() {
  heed::GroupQueryAttentionOptions attention(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/2);
  heed::Encoder encoder(heed::EncoderOptions(attention, /*num_layers=*/2));
  auto padding = heed::padding_mask(torch::tensor({10, 7}), 10);
  auto y = encoder->forward(torch::randn({2, 10, 64}), padding);  // [B, L, E]
}

void attention_pooling() {
  heed::GroupQueryAttentionOptions heads(/*emb_dim=*/64, /*head_num=*/4, /*group_num=*/4);
  heed::AttentionPooling pooling{heed::AttentionPoolingOptions(heads)};
  auto vectors = pooling->forward(torch::randn({2, 10, 64}));  // [B, E]
}

void run_layers() {
  run(feed_forward_of_ones_own, feed_forward_layers, norms_and_memories, attention_layers,
      latent_attention_in_a_block, mixture_of_experts, mixture_in_a_block, feed_forward, norm,
      position_embedding, qk_norm, relative_position_bias, transformer_block, transformer_inputs,
      encoder, attention_pooling);
}

}  // namespace

}  // namespace header

void headers_of_layers() { header::run_layers(); }

}  // namespace guide
