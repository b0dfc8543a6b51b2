// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/encoder_decoder.h>
#include <heed/masks.h>
#include <heed/pack_weights.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test::encoder_decoders {
namespace {

constexpr int64_t B = 2, D = 6, E = 16, H = 3, L = 5, S = 7, V = 40;

/// The model of a reference: the parameters and buffers of a module, by name, as float64 leaves.
class Reference {
 public:
  explicit Reference(const torch::nn::Module& module) {
    for (const auto& item : module.named_parameters()) {
      values_[item.key()] = item.value().detach().to(at::kDouble).clone().requires_grad_();
    }
    for (const auto& item : module.named_buffers()) {
      values_[item.key()] = item.value().to(at::kDouble);
    }
  }

  const std::map<std::string, at::Tensor>& values() const { return values_; }
  bool has(const std::string& name) const { return values_.count(name) > 0; }
  const at::Tensor& at(const std::string& name) const { return values_.at(name); }

  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    const auto y = at::matmul(x, at(name + ".weight").t());
    return has(name + ".bias") ? y + at(name + ".bias") : y;
  }
  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    const auto& weight = at(name + ".weight");
    if (has(name + ".bias")) {
      return at::layer_norm(x, {weight.size(0)}, weight, at(name + ".bias"), 1e-5);
    }
    return x * at::rsqrt(x.square().mean(-1, true) + 1e-5) * weight;
  }

  /// Attention of x [B, L, E] to memory [B, S, E]; bias [H, L, S] has -inf where a key is hidden.
  at::Tensor attend(const std::string& name, const at::Tensor& x, const at::Tensor& memory,
                    const at::Tensor& bias, double scale) const {
    const auto heads = [&](const char* projection, const at::Tensor& from) {
      return linear(name + projection, from).unflatten(-1, {H, -1}).transpose(1, 2);
    };
    const auto scores =
        at::matmul(heads(".fc_q", x), heads(".fc_k", memory).transpose(2, 3)) * scale + bias;
    const auto mixed = at::matmul(scores.softmax(-1), heads(".fc_v", memory));
    return linear(name + ".fc_o", mixed.transpose(1, 2).flatten(2));
  }

 private:
  std::map<std::string, at::Tensor> values_;
};

/// 0 where seen [.., L, S] is true, and -inf elsewhere.
at::Tensor hidden_bias(const at::Tensor& seen) {
  return at::zeros(seen.sizes(), at::kDouble)
      .masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
}

/// T5's bias [H, L, S], pair by pair, with 8 buckets and distances up to 9.
at::Tensor bucket_bias(const at::Tensor& table, int64_t length, int64_t keys, bool bidirectional) {
  const int64_t count = bidirectional ? 4 : 8, exact = count / 2;
  std::vector<int64_t> buckets;
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t first = bidirectional && j > i ? count : 0;
      const int64_t apart = bidirectional ? std::abs(j - i) : std::max<int64_t>(i - j, 0);
      int64_t bucket = apart;
      if (apart >= exact) {
        const double growth = std::log(static_cast<double>(apart) / static_cast<double>(exact)) /
                              std::log(9.0 / static_cast<double>(exact));
        bucket = exact + static_cast<int64_t>(growth * static_cast<double>(count - exact));
      }
      buckets.push_back(first + std::min(bucket, count - 1));
    }
  }
  return table.index_select(0, at::tensor(buckets, at::kLong)).t().reshape({H, length, keys});
}

/// The model with T5's options: pre-norm by rms_norm, relative biases, scale 1.
EncoderDecoderOptions relative_options(bool shared) {
  TransformerBlockOptions block(
      GroupQueryAttentionOptions(E, H, H).head_dim(D).input_bias(false).output_bias(false).scale(
          1.0));
  block.norm(NormKind::rms_norm)
      .feed_forward(FeedForwardOptions(E).activation(Activation::relu).bias(false));
  auto bias = RelativePositionBiasOptions(H).buckets(8).max_distance(9);
  const auto encoder = EncoderOptions(block, 2).relative_bias(bias).shared_relative_bias(shared);
  const auto decoder = EncoderOptions(block, 2)
                           .relative_bias(bias.bidirectional(false))
                           .shared_relative_bias(shared);
  return {TextEncoderOptions(V, encoder).token_embedding(false),
          DecoderOptions(V, decoder).scores_scale(0.25)};
}

at::Tensor reference_stack(const Reference& own, const std::string& stack, at::Tensor x,
                           const at::Tensor& hidden, const at::Tensor& memory,
                           const at::Tensor& memory_bias) {
  for (int64_t i = 0; i < 2; ++i) {
    const auto block = stack + ".blocks." + std::to_string(i);
    const auto own_table = stack + ".relative_biases." + std::to_string(i) + ".weight";
    const auto& table =
        own.at(own.has(own_table) ? own_table : stack + ".relative_biases.0.weight");
    const auto bias = bucket_bias(table, x.size(1), x.size(1), !memory.defined()) + hidden;
    const auto input = own.norm(block + ".attention_norm", x);
    x = x + own.attend(block + ".attention", input, input, bias, 1.0);
    if (memory.defined()) {
      const auto query = own.norm(block + ".cross_attention_norm", x);
      x = x + own.attend(block + ".cross_attention", query, memory, memory_bias, 1.0);
    }
    const auto wide =
        own.linear(block + ".feed_forward.fc_in", own.norm(block + ".feed_forward_norm", x));
    x = x + own.linear(block + ".feed_forward.fc_out", at::relu(wide));
  }
  return own.norm(stack + ".final_norm", x);
}

/// The scores of a padded batch.
at::Tensor reference_scores(const Reference& own, const at::Tensor& source,
                            const at::Tensor& target, const at::Tensor& lengths) {
  const auto& embedding = own.at("decoder.token_embedding.weight");
  const auto embed = [&](const at::Tensor& tokens) {
    return embedding.index_select(0, tokens.flatten()).view({B, tokens.size(1), E});
  };
  const auto real = at::arange(S).lt(lengths.unsqueeze(1)).view({B, 1, 1, S});
  const auto padding = hidden_bias(real);
  const auto memory =
      reference_stack(own, "encoder.stack", embed(source), padding, at::Tensor(), at::Tensor());
  const auto causal = hidden_bias(at::ones({L, L}, at::kBool).tril());
  const auto x = reference_stack(own, "decoder.stack", embed(target), causal, memory, padding);
  return at::matmul(x * 0.25, embedding.t());
}

TEST(EncoderDecoder, ComputesTheReferenceWithRelativeBiases) {
  for (const bool shared : {true, false}) {
    SCOPED_TRACE(shared);
    torch::manual_seed(moved(1));
    EncoderDecoder model(relative_options(shared));
    const Reference own(*model);
    const auto source = at::randint(V, {B, S}, at::kLong),
               target = at::randint(V, {B, L}, at::kLong);
    const auto lengths = at::tensor({S, int64_t{4}});
    const auto scores = model->forward(source, target, padding_mask(lengths, S));
    const auto expected = reference_scores(own, source, target, lengths);
    // Two stacks of two blocks pass the rounding of float32 on.
    EXPECT_TRUE(is_close(scores, expected, 1e-5));
    const auto factors = at::randn(scores.sizes());
    (scores * factors).sum().backward();
    (expected * factors).sum().backward();
    for (const auto& item : model->named_parameters()) {
      const auto& wanted = own.at(item.key()).grad();
      EXPECT_TRUE(is_close(item.value().grad(), wanted, 1e-4)) << item.key();
    }
  }
}

EncoderDecoderOptions post_norm_options() {
  TransformerBlockOptions block(GroupQueryAttentionOptions(E, 2, 2));
  block.norm_placement(NormPlacement::post);
  const auto positions =
      PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(12).offset(2);
  return {TextEncoderOptions(V, EncoderOptions(block, 2))
              .embedding_scale(4.0)
              .positions(positions)
              .embedding_norm(true),
          DecoderOptions(V, block, 2)
              .positions(positions)
              .embedding_norm(true)
              .embedding_scale(4.0)
              .score_bias(true)};
}

TEST(EncoderDecoder, DecodesStepByStep) {
  for (const auto& options :
       {relative_options(true), relative_options(false), post_norm_options()}) {
    torch::manual_seed(moved(2));
    const at::NoGradGuard no_grad;
    EncoderDecoder model(options);
    model->eval();
    const auto source = at::randint(V, {B, S}, at::kLong),
               target = at::randint(V, {B, L}, at::kLong);
    const auto padding = padding_mask(at::tensor({int64_t{3}, S}), S);
    const auto expected = model->forward(source, target, padding);
    const auto memory = model->encode(source, padding);
    const auto inputs =
        TransformerInputs().projected_memory(model->project_memory(memory)).memory_mask(padding);
    auto caches = model->make_caches(B, L);
    const auto first = model->forward_cached(target.narrow(1, 0, 3), caches, {}, true, inputs);
    EXPECT_TRUE(is_close(first, expected.narrow(1, 2, 1), 1e-5));
    for (int64_t i = 3; i < L; ++i) {
      const auto next = model->forward_cached(target.narrow(1, i, 1), caches, {}, inputs);
      EXPECT_TRUE(is_close(next, expected.narrow(1, i, 1), 1e-5)) << i;
    }
  }
}

/// Two targets of one source and one of the other, of which one begins later.
TEST(EncoderDecoder, DecodesInPages) {
  for (const auto& options :
       {relative_options(true), relative_options(false), post_norm_options()}) {
    torch::manual_seed(moved(6));
    const at::NoGradGuard no_grad;
    EncoderDecoder model(options);
    model->eval();
    const auto source = at::randint(V, {B, S}, at::kLong),
               target = at::randint(V, {3, L}, at::kLong);
    const auto padding = padding_mask(at::tensor({int64_t{3}, S}), S);
    const std::vector<int64_t> rows = {1, 0, 1};
    const auto like = [&](const at::Tensor& tensor) {
      return tensor.index_select(0, at::tensor(rows));
    };
    const auto expected = model->forward(like(source), target, like(padding));
    const auto memory = model->encode(source, padding);
    const auto inputs =
        TransformerInputs().projected_memory(model->project_memory(memory)).memory_mask(padding);
    auto cache = model->make_paged_cache(8);
    const std::vector<int64_t> sequences = {cache.add(), cache.add(), cache.add()};
    auto step = cache.append(sequences, {2, 1, L});
    step.memory_rows(rows);
    const auto tokens =
        at::cat({target[0].narrow(0, 0, 2), target[1].narrow(0, 0, 1), target[2]}).unsqueeze(0);
    const auto scores = model->forward_cached(tokens, step, /*last_only=*/true, inputs)[0];
    EXPECT_TRUE(is_close(scores[0], expected[0][1], 1e-5));
    EXPECT_TRUE(is_close(scores[1], expected[1][0], 1e-5));
    EXPECT_TRUE(is_close(scores[2], expected[2][L - 1], 1e-5));
    auto next = cache.append({sequences[0], sequences[1]}, {L - 2, L - 1});
    next.memory_rows({rows[0], rows[1]});
    const auto rest =
        at::cat({target[0].narrow(0, 2, L - 2), target[1].narrow(0, 1, L - 1)}).unsqueeze(0);
    const auto all = model->forward_cached(rest, next, /*last_only=*/false, inputs)[0];
    EXPECT_TRUE(is_close(all.narrow(0, 0, L - 2), expected[0].narrow(0, 2, L - 2), 1e-5));
    EXPECT_TRUE(is_close(all.narrow(0, L - 2, L - 1), expected[1].narrow(0, 1, L - 1), 1e-5));
  }
}

TEST(EncoderDecoder, AddsTheScoreBiasToScoresAndLoss) {
  torch::manual_seed(moved(3));
  EncoderDecoder model(post_norm_options());
  const auto source = at::randint(V, {B, S}, at::kLong), target = at::randint(V, {B, L}, at::kLong);
  const auto targets = at::randint(V, {B, L}, at::kLong);
  const auto before = model->forward(source, target);
  EXPECT_EQ(model->decoder->score_bias.sizes(), at::IntArrayRef({1, V}));
  const auto bias = at::randn({1, V});
  {
    const at::NoGradGuard no_grad;
    model->decoder->score_bias.copy_(bias);
  }
  const auto scores = model->forward(source, target);
  EXPECT_TRUE(is_close(scores, before + bias, 1e-5));
  const auto loss = at::cross_entropy_loss(scores.flatten(0, 1), targets.flatten());
  EXPECT_TRUE(is_close(model->loss(source, target, targets), loss, 1e-5));
  const auto copy = std::dynamic_pointer_cast<EncoderDecoderImpl>(model->clone());
  EXPECT_TRUE(copy->forward(source, target).equal(scores));
}

TEST(EncoderDecoder, EncodesFrames) {
  torch::manual_seed(moved(4));
  const at::NoGradGuard no_grad;
  const TransformerBlockOptions block(GroupQueryAttentionOptions(E, 2, 2).key_bias(false));
  EncoderDecoder model(EncoderDecoderOptions(FrameEncoderOptions(5, 8, EncoderOptions(block, 2)),
                                             DecoderOptions(V, block, 2)));
  auto& own = model->frame_encoder;
  for (const int64_t frames : {1, 9, 16}) {
    const auto input = at::randn({B, 5, frames});
    const auto narrow = at::gelu(
        at::conv1d(input, own->first_convolution->weight, own->first_convolution->bias, 1, 1));
    const auto x = at::gelu(at::conv1d(narrow, own->second_convolution->weight,
                                       own->second_convolution->bias, 2, 1))
                       .transpose(1, 2);
    const auto positions = own->position_embedding->weight.narrow(0, 0, x.size(1));
    EXPECT_TRUE(is_close(model->encode(input), own->stack->forward(x + positions), 1e-5));
    EXPECT_EQ(model->forward(input, at::zeros({B, L}, at::kLong)).sizes(),
              at::IntArrayRef({B, L, V}));
  }
  EXPECT_ERROR("EncoderDecoder: source_mask must be absent: the source has frames",
               model->encode(at::randn({B, 5, 8}), at::ones({B, 1, 1, 4}, at::kBool)));
  EXPECT_ERROR("FrameEncoder: frames must be [B, 5, T] with T of at least 1; frames [2, 4, 8]",
               model->encode(at::randn({B, 4, 8})));
  EXPECT_ERROR("FrameEncoder: frames dim 2 (17) must be at most 2 positions (16)",
               model->encode(at::randn({B, 5, 17})));
}

TEST(EncoderDecoder, RefusesWhatDoesNotFit) {
  EncoderDecoder model(relative_options(true));
  const auto source = at::zeros({B, S}, at::kLong), target = at::zeros({B, L}, at::kLong);
  EXPECT_ERROR(
      "EncoderDecoder: source_mask must be [2 or 1, 1, 1, 7], as padding_mask returns it; "
      "source_mask [7, 7]",
      model->forward(source, target, at::ones({S, S}, at::kBool)));
  EXPECT_ERROR(
      "EncoderDecoder: target dim 0 (1) must equal source dim 0 (2); source [2, 7], target [1, 5]",
      model->forward(source, target.narrow(0, 0, 1)));
  EXPECT_ERROR(
      "EncoderDecoder: target must have no memory, projected_memory and memory_mask: they come "
      "from "
      "the source",
      model->forward(source, target,
                     EncoderDecoderInputs().target(TransformerInputs().memory(source))));
  EXPECT_ERROR("Encoder: relative_bias must be absent: the stack has its own",
               model->forward(source, target,
                              EncoderDecoderInputs().target(
                                  TransformerInputs().relative_bias(at::zeros({H, 3})))));
  auto options = relative_options(true);
  std::get<TextEncoderOptions>(options.encoder()).vocab_size(V + 1);
  EXPECT_ERROR(
      "EncoderDecoder: encoder vocab_size (41) must equal decoder vocab_size (40) without "
      "token_embedding",
      EncoderDecoder{options});
  options = post_norm_options();
  options.decoder() = relative_options(true).decoder().vocab_size(V);
  options.decoder().stack().block().cross_attention(false);
  EXPECT_ERROR("EncoderDecoder: decoder cross_attention must be true", EncoderDecoder{options});
  EXPECT_EQ(printed(model), "heed::EncoderDecoder()");
}

TEST(EncoderDecoder, IsPacked) {
  torch::manual_seed(moved(5));
  const at::NoGradGuard no_grad;
  EncoderDecoder model(post_norm_options());
  model->eval();
  const auto source = at::randint(V, {B, S}, at::kLong), target = at::randint(V, {B, L}, at::kLong);
  const auto expected = model->forward(source, target);
  pack_weights(*model);
  EXPECT_TRUE(is_close(model->forward(source, target), expected, 1e-5));
}

}  // namespace
}  // namespace heed::test::encoder_decoders
