// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/autocast.h>
#include <heed/checkpoint.h>
#include <heed/decoder.h>
#include <heed/linear_cross_entropy.h>
#include <heed/transformer.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "cpu/capability.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/memory.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/transformers.h"

namespace heed::test::of_decoder {
namespace {

constexpr int64_t B = 2, E = 32, H = 4, G = 2, L = 11, V = 50;

at::Tensor random_tokens(at::IntArrayRef shape) { return at::randint(V, shape, at::kLong); }

/// A model whose last block has been cut off, which its options do not say.
TEST(Decoder, HasAsManyLayersAsBlocks) {
  torch::manual_seed(moved(31));
  const at::NoGradGuard no_grad;
  Decoder decoder(DecoderOptions(V, llama_options(E, H, G), 3));
  torch::nn::ModuleList fewer;
  for (size_t i = 0; i < 2; ++i) fewer->push_back(decoder->stack->blocks[i]);
  decoder->stack->replace_module("blocks", fewer.ptr());
  decoder->stack->blocks = fewer;
  const auto tokens = random_tokens({B, L});
  const auto expected = decoder(tokens);
  auto caches = decoder->make_caches(B, L);
  EXPECT_EQ(caches.size(), 2);
  EXPECT_TRUE(is_close(decoder->forward_cached(tokens, caches), expected, 1e-5));
  auto paged = decoder->make_paged_cache(/*pages=*/2);
  EXPECT_EQ(paged.options().layers(), 2);
  caches.push_back(std::move(decoder->make_caches(B, L).front()));
  EXPECT_ERROR("Decoder: caches size (3) must equal num_layers (2)",
               decoder->forward_cached(tokens, caches));
  const auto copy = std::dynamic_pointer_cast<DecoderImpl>(decoder->clone());
  EXPECT_TRUE(copy->forward(tokens).equal(expected));
  // As many residual connections.
  decoder->reset_parameters();
  EXPECT_NEAR(decoder->stack->blocks->ptr<TransformerBlockImpl>(0)
                  ->attention->fc_o->weight.std()
                  .item<double>(),
              0.02 / std::sqrt(4.0), 0.001);
}

/// A decoder does, with checkpointing too, and its gradients pass through what was projected.
TEST(Decoder, AttendsToAMemoryThatWasProjectedOnce) {
  torch::manual_seed(moved(10));
  Decoder decoder(DecoderOptions(V, block_options(E, H, G).cross_attention(true), 3)
                      .positions(PositionEmbeddingOptions(E)));
  const auto tokens = random_tokens({B, L});
  const auto memory = uniform({B, 7, E}, at::kFloat).requires_grad_();
  const auto memory_mask = at::ones({B, 1, 1, 7}, at::kBool).tril(4);
  const auto inputs = TransformerInputs().memory(memory).memory_mask(memory_mask);
  const auto projected = [&] {
    return TransformerInputs()
        .projected_memory(decoder->project_memory(memory))
        .memory_mask(memory_mask);
  };
  const auto expected = decoder->forward(tokens, inputs);
  const auto weight = uniform(expected.sizes(), at::kFloat);
  auto sources = decoder->parameters();
  sources.push_back(memory);
  const auto wanted = torch::autograd::grad({(expected * weight).sum()}, sources);
  for (const bool checkpointing : {false, true}) {
    decoder->stack->options.checkpointing(checkpointing);
    const auto output = decoder->forward(tokens, projected());
    EXPECT_TRUE(output.equal(expected));
    const auto gradients = torch::autograd::grad({(output * weight).sum()}, sources);
    EXPECT_TRUE(are_close(gradients, wanted, 1e-5));
  }
  const at::NoGradGuard no_grad;
  const auto once = projected();
  auto caches = decoder->make_caches(B, L);
  const auto steps = in_chunks(decoder, tokens, caches, 1, at::IntArrayRef(), once);
  EXPECT_TRUE(is_close(steps, expected, 1e-5));
}

/// The output is that of forward, and the weights are what forward_with_weights of each attention
/// gives.
TEST(Decoder, GivesTheWeightsOfEveryAttention) {
  torch::manual_seed(moved(11));
  Decoder decoder(DecoderOptions(V, block_options(E, H, G).cross_attention(true), 2));
  const auto tokens = random_tokens({B, L});
  const auto memory = uniform({B, 7, E}, at::kFloat);
  const auto inputs = TransformerInputs().memory(memory);
  const auto [scores, weights] = decoder->forward_with_weights(tokens, inputs);
  EXPECT_TRUE(is_close(scores, decoder->forward(tokens, inputs), 1e-5));
  ASSERT_EQ(weights.size(), 2U);
  auto x = decoder->token_embedding(tokens);
  for (size_t i = 0; i < 2; ++i) {
    const auto block = decoder->stack->blocks->ptr<TransformerBlockImpl>(i);
    const auto normed = block->attention_norm(x);
    const auto [attended, self] = block->attention->forward_with_weights(normed);
    EXPECT_TRUE(is_close(weights[i].self, self, 1e-6)) << i;
    const auto query = block->cross_attention_norm(x + attended);
    const auto cross =
        std::get<1>(block->cross_attention->forward_with_weights(query, memory, memory));
    EXPECT_TRUE(is_close(weights[i].cross, cross, 1e-6)) << i;
    x = block->forward(x, inputs);
  }
  const auto projected = TransformerInputs().projected_memory(decoder->project_memory(memory));
  const auto again = std::get<1>(decoder->forward_with_weights(tokens, projected));
  EXPECT_TRUE(again[1].cross.equal(weights[1].cross));
  Encoder encoder(EncoderOptions(block_options(E, H, G), 1));
  EXPECT_FALSE(std::get<1>(encoder->forward_with_weights(x))[0].cross.defined());
}

TEST(Decoder, CachedEqualsUncached) {
  torch::manual_seed(moved(5));
  const at::NoGradGuard no_grad;
  const auto learned = PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(L);
  const std::vector<DecoderOptions> models = {
      DecoderOptions(V, llama_options(E, H, G), 3).tied_head(false),
      DecoderOptions(V, block_options(E, H, G), 2).positions(learned),
      DecoderOptions(V, block_options(E, H, G), 2).positions(PositionEmbeddingOptions(E)),
      DecoderOptions(
          V, block_options(E, H, G).cross_attention(true).norm_placement(NormPlacement::post), 2)};
  const auto tokens = random_tokens({B, L});
  for (const auto& options : models) {
    Decoder model(options);
    model->eval();
    TransformerInputs inputs;
    if (options.stack().block().cross_attention()) inputs.memory(uniform({B, 4, E}, at::kFloat));
    const auto whole = model->forward(tokens, inputs);
    ASSERT_EQ(whole.sizes(), at::IntArrayRef({B, L, V}));
    for (const int64_t chunk : {1, 4, 11}) {
      auto caches = model->make_caches(B, L);
      const auto scores = in_chunks(model, tokens, caches, chunk, at::IntArrayRef(), inputs);
      EXPECT_TRUE(is_close(scores, whole, 1e-5)) << "chunk " << chunk;
    }
    // Prompts of different lengths, padded.
    auto caches = model->make_caches(B, L);
    model->forward_cached(tokens.narrow(1, 0, 7), caches, {7, 3}, inputs);
    const auto next = at::cat({tokens[0].narrow(0, 7, 1), tokens[1].narrow(0, 3, 1)}).view({B, 1});
    const auto scores = model->forward_cached(next, caches, {}, inputs);
    EXPECT_TRUE(is_close(scores[0][0], whole[0][7], 1e-5));
    EXPECT_TRUE(is_close(scores[1][0], whole[1][3], 1e-5));
  }
}

TEST(Decoder, ScoresByItsEmbeddingWhereTheHeadIsTied) {
  torch::manual_seed(moved(9));
  const auto tokens = random_tokens({B, L});
  for (const bool tied : {true, false}) {
    Decoder model(DecoderOptions(V, block_options(E, H, G), 1).tied_head(tied));
    EXPECT_EQ(model->named_parameters().contains("head.weight"), !tied);
    const auto& weight = tied ? model->token_embedding->weight : model->head->weight;
    const auto hidden = model->stack(model->token_embedding(tokens));
    EXPECT_TRUE(is_close(model(tokens), hidden.matmul(weight.t()), 1e-5));
  }
}

std::vector<at::Tensor> with_gradients(const at::Tensor& loss, const Decoder& model) {
  auto found = torch::autograd::grad({loss}, model->parameters());
  found.push_back(loss.detach());
  return found;
}

TEST(Decoder, HasTheLossOfItsScores) {
  torch::manual_seed(moved(41));
  const auto text = random_tokens({B, L + 1});
  const auto tokens = text.slice(1, 0, -1), targets = text.slice(1, 1).clone();
  targets[0][3] = -100;
  for (const bool tied : {true, false}) {
    for (const bool capped : {false, true}) {
      for (const bool checkpointing : {false, true}) {
        auto options = DecoderOptions(V, llama_options(E, H, G), 2).tied_head(tied);
        if (capped) options.softcap(2.0);
        options.stack().checkpointing(checkpointing);
        Decoder model(options);
        const auto inputs = TransformerInputs().documents(at::arange(L).floor_divide(5));
        const auto scores = [&] { return model->forward(tokens, inputs).flatten(0, 1); };
        const auto expected = at::cross_entropy_loss(scores(), targets.flatten());
        EXPECT_TRUE(are_close(with_gradients(model->loss(tokens, targets, inputs), model),
                              with_gradients(expected, model), 1e-5));
        const auto none = LinearCrossEntropyOptions().reduction(LossReduction::none);
        const auto each = model->loss(tokens, targets, inputs, none);
        EXPECT_EQ(each.sizes(), targets.sizes());
        EXPECT_TRUE(is_close(
            each.flatten(),
            at::cross_entropy_loss(scores(), targets.flatten(), {}, at::Reduction::None), 1e-5));
        const auto smooth = LinearCrossEntropyOptions().label_smoothing(0.1);
        EXPECT_TRUE(is_close(
            model->loss(tokens, targets, inputs, smooth),
            at::cross_entropy_loss(scores(), targets.flatten(), {}, at::Reduction::Mean, -100, 0.1),
            1e-5));
      }
    }
  }
}

/// Tied and not, with a limit and without, in all ways to compute scores.
TEST(Decoder, ScalesItsScores) {
  torch::manual_seed(moved(44));
  constexpr double kScale = -7.5;
  const auto text = random_tokens({B, L + 1});
  const auto tokens = text.slice(1, 0, -1), targets = text.slice(1, 1);
  for (const bool tied : {true, false}) {
    for (const auto cap : {std::optional<double>(), std::optional(2.0)}) {
      auto options = DecoderOptions(V, llama_options(E, H, G), 2).tied_head(tied);
      Decoder model(options.scores_scale(kScale).softcap(cap));
      model->to(at::kDouble);
      const auto expected = [&] {
        const auto& weight = tied ? model->token_embedding->weight : model->head->weight;
        const auto hidden = model->stack(model->token_embedding(tokens));
        const auto scores = kScale * hidden.matmul(weight.t());
        return cap ? *cap * at::tanh(scores / *cap) : scores;
      };
      // Sums of at most 96 terms in another order, in two layers.
      EXPECT_TRUE(is_close(model(tokens), expected(), 1e-12));
      EXPECT_TRUE(is_close(std::get<0>(model->forward_with_weights(tokens)), expected(), 1e-12));
      const auto direction = uniform({B, L, V}, at::kDouble);
      EXPECT_TRUE(are_close(with_gradients((model(tokens) * direction).sum(), model),
                            with_gradients((expected() * direction).sum(), model), 1e-11));
      const auto loss = at::cross_entropy_loss(expected().flatten(0, 1), targets.flatten());
      EXPECT_TRUE(are_close(with_gradients(model->loss(tokens, targets), model),
                            with_gradients(loss, model), 1e-11));
      const at::NoGradGuard no_grad;
      auto caches = model->make_caches(B, L), others = model->make_caches(B, L);
      EXPECT_TRUE(is_close(model->forward_cached(tokens, caches), expected(), 1e-12));
      EXPECT_TRUE(is_close(model->forward_cached(tokens, others, {}, /*last_only=*/true),
                           expected().narrow(1, L - 1, 1), 1e-12));
    }
  }
}

/// A power of two changes no digit, whatever the dtype.
TEST(Decoder, ScalesScoresExactlyByAPowerOfTwo) {
  torch::manual_seed(moved(45));
  const at::NoGradGuard no_grad;
  const DecoderOptions options(V, llama_options(E, H, G), 2);
  Decoder plain(options), scaled(DecoderOptions(options).scores_scale(0.0625));
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    scaled->parameters()[i].copy_(plain->parameters()[i]);
  }
  plain->to(at::kBFloat16);
  scaled->to(at::kBFloat16);
  const auto tokens = random_tokens({B, L});
  EXPECT_TRUE(scaled(tokens).equal(plain(tokens) * 0.0625));
}

TEST(Decoder, HasALossInLowerPrecision) {
  torch::manual_seed(moved(42));
  const auto text = random_tokens({B, L + 1});
  const auto tokens = text.slice(1, 0, -1), targets = text.slice(1, 1);
  Decoder model(DecoderOptions(V, llama_options(E, H, G), 2));
  const auto expected = model->loss(tokens, targets);
  {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    const auto loss = model->loss(tokens, targets);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_TRUE(is_close(loss, expected, 0.1));
  }
  model->to(at::kBFloat16);
  const auto loss = model->loss(tokens, targets);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_TRUE(is_close(loss, expected, 0.1));
}

/// The loss alone, computed again in the backward pass.
TEST(Decoder, HasALossThatMayBeCheckpointed) {
  torch::manual_seed(moved(43));
  const auto x = uniform({6, 8}, at::kFloat).requires_grad_();
  const auto weight = uniform({9, 8}, at::kFloat).requires_grad_();
  const auto targets = at::randint(9, {6}, at::kLong);
  const auto expected =
      torch::autograd::grad({linear_cross_entropy(x, weight, targets)}, {x, weight});
  const auto loss =
      checkpoint([&](const auto& in) { return linear_cross_entropy(in[0], weight, targets); }, {x});
  EXPECT_TRUE(are_close(torch::autograd::grad({loss}, {x, weight}), expected, 1e-6));
}

TEST(Decoder, RefusesTargetsThatAreTheTokens) {
  Decoder model(DecoderOptions(V, llama_options(E, H, G), 1));
  const auto tokens = at::tensor({1, 2, 3, 4}, at::kLong).view({1, 4});
  const auto* const text =
      "Decoder: targets must be the tokens that follow tokens, and these are the tokens "
      "themselves: pass text.slice(1, 0, -1) as tokens and text.slice(1, 1) as targets";
  EXPECT_ERROR(text, model->loss(tokens, tokens));
  EXPECT_ERROR(text, model->loss(tokens, at::tensor({-100, -100, 3, 4}, at::kLong).view({1, 4})));
  // Texts of which a token follows itself.
  model->loss(at::full({2, 4}, 7, at::kLong), at::full({2, 4}, 7, at::kLong));
  model->loss(tokens.slice(1, 0, 1), tokens.slice(1, 0, 1));
  model->loss(tokens, at::full_like(tokens, -100));
  const auto wrong = [&](const at::Tensor& targets, const LinearCrossEntropyOptions& options = {}) {
    return value_error([&] { model->loss(tokens, targets, {}, options); });
  };
  EXPECT_EQ(wrong(at::tensor({2, 3, 50, 4}, at::kLong).view({1, 4})),
            "Decoder: targets[0][2] (50) must be ignore_index (-100), or at least 0 and below "
            "vocab_size (50)");
  EXPECT_EQ(wrong(at::zeros({1, 3}, at::kLong)),
            "Decoder: targets [1, 3] must have the shape of tokens; tokens [1, 4]");
  EXPECT_EQ(wrong(at::zeros({1, 4})), "Decoder: targets dtype (Float) must be Long");
  EXPECT_EQ(wrong(tokens + 1, LinearCrossEntropyOptions().softcap(3.0)),
            "Decoder: softcap must not be given: it is an option of the decoder");
  EXPECT_EQ(wrong(tokens + 1, LinearCrossEntropyOptions().bias(at::zeros({V}))),
            "Decoder: bias must not be given: the scores are the head's");
}

TEST(Decoder, LeaksNoLaterToken) {
  torch::manual_seed(moved(6));
  Decoder model(DecoderOptions(V, llama_options(E, H, G), 2));
  model->eval();
  const auto tokens = random_tokens({1, L});
  const auto before = model(tokens);
  auto changed = tokens.clone();
  changed[0][6] = (tokens[0][6] + 1) % V;
  const auto after = model(changed);
  EXPECT_TRUE(after.narrow(1, 0, 6).equal(before.narrow(1, 0, 6)));
  EXPECT_FALSE(after.narrow(1, 6, 1).equal(before.narrow(1, 6, 1)));
}

/// Learns to repeat a sequence, in float32 and under autocast to bfloat16.
TEST(Decoder, Learns) {
  for (const bool autocast : {false, true}) {
    torch::manual_seed(moved(7));
    Decoder model(DecoderOptions(V, llama_options(E, H, G), 2).dropout(0.1));
    torch::optim::AdamW optimizer(model->parameters(), 3e-3);
    const auto tokens = random_tokens({1, 33});
    double loss_value = 0.0;
    for (int step = 0; step < 60; ++step) {
      optimizer.zero_grad();
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_enabled(at::kCPU, autocast);
      const auto scores = model(tokens.narrow(1, 0, 32));
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      EXPECT_EQ(scores.scalar_type(), autocast ? at::kBFloat16 : at::kFloat);
      const auto loss =
          at::cross_entropy_loss(scores.flatten(0, 1).to(at::kFloat), tokens.narrow(1, 1, 32)[0]);
      loss.backward();
      optimizer.step();
      loss_value = loss.item<double>();
    }
    // At first log(50) = 3.9; the largest of 20 seeds was 0.52.
    EXPECT_LT(loss_value, 1.0) << "autocast " << autocast;
  }
}

/// A tied weight, on whose gradient tokens that stand twice and the head have parts.
TEST(Decoder, AddsTheGradientsOfATiedWeight) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    torch::manual_seed(moved(21));
    Decoder tied(DecoderOptions(V, llama_options(E, H, G), 1));
    Decoder untied(DecoderOptions(V, llama_options(E, H, G), 1).tied_head(false));
    {
      const at::NoGradGuard no_grad;
      auto parameters = untied->named_parameters();
      for (const auto& own : tied->named_parameters()) parameters[own.key()].copy_(own.value());
      untied->head->weight.copy_(tied->token_embedding->weight);
    }
    tied->to(dtype);
    untied->to(dtype);
    const auto tokens = random_tokens({B, L});
    const auto direction = uniform({B, L, V}, dtype);
    const auto& weight = tied->token_embedding->weight;
    const auto derivatives = [&](Decoder& model, const std::vector<at::Tensor>& leaves) {
      const auto scores = model(tokens);
      auto result = torch::autograd::grad({scores}, leaves, {direction}, /*retain_graph=*/true);
      const auto again = torch::autograd::grad({scores}, leaves, {direction},
                                               /*retain_graph=*/true, /*create_graph=*/true);
      auto sum = again[0];
      for (size_t i = 1; i < again.size(); ++i) sum = sum + again[i];
      for (const auto& second : torch::autograd::grad({sum.square().sum()}, leaves)) {
        result.push_back(second);
      }
      return result;
    };
    const auto actual = derivatives(tied, {weight});
    const auto parts = derivatives(untied, {untied->token_embedding->weight, untied->head->weight});
    EXPECT_TRUE(actual[0].layout() == at::kStrided);
    EXPECT_TRUE(
        are_alike(actual, {parts[0] + parts[1], parts[2] + parts[3]}, 1024 * unit_roundoff(dtype)))
        << dtype;
    // The gradient of the embeddings alone, which arrives without the head's.
    const auto [scores, weights] = tied->forward_with_weights(tokens);
    const auto alone =
        torch::autograd::grad({weights[0].self}, {weight}, {at::ones_like(weights[0].self)})[0];
    EXPECT_EQ(alone.layout(), at::kStrided);
    EXPECT_EQ(alone.sizes(), weight.sizes());
  }
}

/// One tensor of the weight's size, not one for each use.
TEST(Decoder, AddsTheGradientsOfATiedWeightInPlace) {
  if (!detail::has_kernels()) GTEST_SKIP() << "there are no kernels";
  constexpr int64_t kRows = 8192;
  Decoder model(DecoderOptions(kRows, llama_options(E, H, G), 1));
  const auto tokens = random_tokens({1, 3});
  const auto bytes = static_cast<double>(model->token_embedding->weight.nbytes());
  const AllocationCounter counter;
  model(tokens).sum().backward();
  EXPECT_GE(static_cast<double>(counter.live()), bytes);
  EXPECT_LT(static_cast<double>(counter.peak()), 1.8 * bytes);
}

/// Padding needs no position of its own: a prompt may be as long as there are positions.
TEST(Decoder, TakesPaddedPromptsUpToTheLastPosition) {
  torch::manual_seed(moved(6));
  const at::NoGradGuard no_grad;
  const auto learned = PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(L);
  Decoder model(DecoderOptions(V, block_options(E, H, G), 2).positions(learned));
  model->eval();
  const auto tokens = random_tokens({2, L});
  const auto whole = model->forward(tokens);
  auto caches = model->make_caches(2, L);
  model->forward_cached(tokens.narrow(1, 0, L - 2), caches, {L - 2, 3});
  // Two tokens of the first, four of the second, which stand far apart.
  auto next = at::zeros({2, 4}, at::kLong);
  next[0].narrow(0, 0, 2).copy_(tokens[0].narrow(0, L - 2, 2));
  next[1].copy_(tokens[1].narrow(0, 3, 4));
  const auto scores = model->forward_cached(next, caches, {2, 4});
  EXPECT_TRUE(is_close(scores[0].narrow(0, 0, 2), whole[0].narrow(0, L - 2, 2), 1e-5));
  EXPECT_TRUE(is_close(scores[1], whole[1].narrow(0, 3, 4), 1e-5));
}

/// A call that throws leaves the caches as they were, and the same tokens then give the same.
void expect_repeatable(const Decoder& model, std::vector<KVCache>& caches, const at::Tensor& tokens,
                       const TransformerInputs& wrong, const std::function<void()>& mend,
                       const TransformerInputs& right = {}) {
  const auto before = caches[0].lengths();
  EXPECT_THROW(model->forward_cached(tokens, caches, {}, wrong), c10::ValueError);
  for (const auto& cache : caches) EXPECT_EQ(cache.lengths(), before);
  mend();
  auto untouched = model->make_caches(B, L);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(is_close(model->forward_cached(tokens, caches, {}, right),
                       model->forward_cached(tokens, untouched, {}, right), 0.0));
}

TEST(Decoder, LeavesAllCachesAsTheyWereWhereOneRefuses) {
  torch::manual_seed(moved(7));
  const auto tokens = random_tokens({B, 5});
  Decoder model(DecoderOptions(V, llama_options(E, H, G), 2));
  model->eval();
  auto caches = model->make_caches(B, L);
  {
    const at::NoGradGuard no_grad;
    caches[1] = std::move(model->make_caches(B, 4)[1]);
    expect_repeatable(model, caches, tokens, {}, [&] { caches[1].grow(L); });
  }
  // The keys of the first block require no grad; those of the second do.
  for (auto& parameter : model->stack->blocks[0]->parameters()) parameter.requires_grad_(false);
  model->token_embedding->weight.requires_grad_(false);
  for (auto& cache : caches) cache.reset();
  expect_repeatable(model, caches, tokens, {}, [] {});
  // Cross-attention comes after self-attention.
  Decoder crossed(DecoderOptions(V, block_options(E, H, G).cross_attention(true), 2));
  crossed->eval();
  auto others = crossed->make_caches(B, L);
  const at::NoGradGuard no_grad;
  const auto memory = [](int64_t width) {
    return TransformerInputs().memory(uniform({B, 3, width}, at::kFloat));
  };
  expect_repeatable(
      crossed, others, tokens, memory(E + 1), [] {}, memory(E));
}

TEST(Decoder, RefusesACacheInTrainingModeWithDropout) {
  const at::NoGradGuard no_grad;
  const auto tokens = random_tokens({B, 5});
  const auto plain = llama_options(E, H, G);
  const auto error = [&](const DecoderOptions& options) {
    Decoder model(options);
    auto caches = model->make_caches(B, L);
    auto pages = model->make_paged_cache(2);
    auto step = pages.append({pages.add()}, {5});
    const auto text = value_error([&] { model->forward_cached(tokens, caches); });
    EXPECT_ERROR(text, model->forward_cached(tokens.narrow(0, 0, 1), step));
    EXPECT_EQ(caches[0].lengths(), std::vector<int64_t>({0, 0}));
    model->eval();
    model->forward_cached(tokens, caches);
    return text;
  };
  EXPECT_EQ(error(DecoderOptions(V, plain, 2).dropout(0.2)),
            "Decoder: dropout (0.2) must be 0 in training mode with a cache: call eval()");
  auto dropped = plain;
  EXPECT_EQ(error(DecoderOptions(V, dropped.dropout(0.3), 2)),
            "TransformerBlock: dropout (0.3) must be 0 in training mode with a cache: call eval()");
  dropped = plain;
  EXPECT_EQ(error(DecoderOptions(V, dropped.feed_forward_dropout(0.3), 2)),
            "TransformerBlock: feed_forward_dropout (0.3) must be 0 in training mode with a cache: "
            "call eval()");
  dropped = plain;
  dropped.feed_forward().dropout(0.4);
  EXPECT_EQ(error(DecoderOptions(V, dropped, 2)),
            "TransformerBlock: feed_forward dropout (0.4) must be 0 in training mode with a cache: "
            "call eval()");
  dropped = plain;
  dropped.attention().dropout(0.5);
  EXPECT_EQ(error(DecoderOptions(V, dropped, 2)),
            "GroupQueryAttention: dropout (0.5) must be 0 in training mode with a cache: call "
            "eval()");
  // Only the cross-attention drops out.
  Decoder crossed(
      DecoderOptions(V, TransformerBlockOptions(dropped.attention()).cross_attention(true), 1));
  crossed->eval();
  crossed->stack->blocks->ptr<TransformerBlockImpl>(0)->cross_attention->train();
  auto caches = crossed->make_caches(B, L);
  EXPECT_ERROR(
      "TransformerBlock: cross_attention dropout (0.5) must be 0 in training mode with a cache: "
      "call eval()",
      crossed->forward_cached(tokens, caches, {}, TransformerInputs().memory(at::ones({B, 3, E}))));
}

TEST(Decoder, RefusesWhatDoesNotFit) {
  Decoder model(DecoderOptions(V, llama_options(E, H, G), 2));
  EXPECT_ERROR("Decoder: tokens dtype (Float) must be Long", model(at::ones({1, 4})));
  EXPECT_ERROR("Decoder: tokens rank (1) must equal 2; tokens [4]",
               model(at::ones({4}, at::kLong)));
  EXPECT_ERROR("Decoder: tokens (3 to 50) must be at least 0 and below vocab_size (50)",
               model(at::tensor({int64_t{3}, V}).view({1, 2})));
  std::vector<KVCache> caches;
  EXPECT_ERROR("Decoder: caches size (0) must equal num_layers (2)",
               model->forward_cached(at::ones({1, 4}, at::kLong), caches));
  auto options = DecoderOptions(V, llama_options(E, H, G), 2);
  options.stack().block().attention().causal(false);
  EXPECT_ERROR("Decoder: attention causal must be true", Decoder{options});
  EXPECT_ERROR("Decoder: vocab_size (0) must be at least 1",
               Decoder(DecoderOptions(0, llama_options(E, H, G), 2)));
}

}  // namespace
}  // namespace heed::test::of_decoder
