// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/masks.h>
#include <heed/pack_weights.h>
#include <heed/task_heads.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/any.h>
#include <torch/utils.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/transformers.h"

namespace heed::test::of_task_heads {
namespace {

constexpr int64_t B = 3, C = 4, E = 32, H = 4, G = 2, L = 7, V = 50, kPadding = 5;

// Sums of 32 terms in float32, in a head of two layers.
constexpr double kTolerance = 1e-5;

TextEncoderOptions encoder_options() {
  const EncoderOptions stack(block_options(E, H, H).norm_placement(NormPlacement::post), 2);
  return TextEncoderOptions(V, stack)
      .positions(PositionEmbeddingOptions(E).kind(PositionKind::learned).max_length(L))
      .type_vocab_size(2)
      .embedding_norm(true);
}

DecoderOptions decoder_options() { return {V, llama_options(E, H, G), 2}; }

at::Tensor some_lengths() { return at::tensor({L, int64_t{3}, int64_t{5}}); }

/// Tokens of which none is the padding, but behind the lengths.
at::Tensor padded_tokens() {
  const auto hidden = at::arange(L).unsqueeze(0) >= some_lengths().unsqueeze(1);
  return at::randint(kPadding + 1, V, {B, L}, at::kLong).masked_fill(hidden, kPadding);
}

template <typename Module>
void randomize(Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module->parameters()) {
    parameter.add_(0.1 * uniform(parameter.sizes(), at::kFloat));
  }
}

/// A HeadTransform in float64.
at::Tensor transform64(const HeadTransform& head, const at::Tensor& x) {
  const auto y = linear64(head->dense, x);
  const auto activation = head->options.activation();
  const auto z = activation == Activation::tanh   ? at::tanh(y)
                 : activation == Activation::relu ? at::relu(y)
                                                  : at::gelu(y);
  if (!head->norm) return z;
  const auto& norm = head->norm;
  std::optional<at::Tensor> bias;
  if (norm->bias.defined()) bias = norm->bias.to(at::kDouble);
  return at::layer_norm(z, {E}, norm->weight.to(at::kDouble), bias, norm->options.eps());
}

std::vector<HeadTransformOptions> transforms() {
  return {HeadTransformOptions(E).activation(Activation::tanh),
          HeadTransformOptions(E).activation(Activation::relu).bias(false),
          HeadTransformOptions(E).norm(NormOptions(E).eps(1e-3)),
          HeadTransformOptions(E).norm(NormOptions(E).bias(false))};
}

TEST(HeadTransform, IsTheReference) {
  torch::manual_seed(moved(101));
  for (const auto& options : transforms()) {
    HeadTransform head(options);
    randomize(head);
    for (const auto& sizes : {std::vector<int64_t>{B, E}, {B, L, E}}) {
      const auto x = uniform(sizes, at::kFloat);
      EXPECT_TRUE(is_close(head(x).to(at::kDouble), transform64(head, x), kTolerance));
      const auto leaves = head->parameters();
      const auto factors = uniform(sizes, at::kDouble);
      const auto gradients = [&](const at::Tensor& y) {
        return torch::autograd::grad({(y.to(at::kDouble) * factors).sum()}, leaves);
      };
      const auto actual = gradients(head(x)), expected = gradients(transform64(head, x));
      for (size_t i = 0; i < leaves.size(); ++i) {
        EXPECT_TRUE(are_alike({actual[i]}, {expected[i]}, kTolerance)) << i;
      }
    }
  }
}

TEST(HeadTransform, RefusesWhatDoesNotFit) {
  const auto error = [](const HeadTransformOptions& options) {
    return value_error([&] { HeadTransform{options}; });
  };
  EXPECT_EQ(error(HeadTransformOptions(0)), "HeadTransform: emb_dim (0) must be at least 1");
  EXPECT_EQ(error(HeadTransformOptions(E).activation(Activation::geglu)),
            "HeadTransform: activation (geglu) must not be gated");
  EXPECT_EQ(error(HeadTransformOptions(E).norm(NormOptions(8))),
            "HeadTransform: norm dim (8) must equal emb_dim (32)");
  EXPECT_EQ(error(HeadTransformOptions(E).dropout(1.0)).substr(0, 28),
            "HeadTransform: dropout (1) m");
  HeadTransform head(HeadTransformOptions(E).activation(Activation::tanh).dropout(0.5));
  EXPECT_ERROR("HeadTransform: x dim 1 (8) must equal emb_dim (32); x [3, 8]",
               head(at::ones({B, 8})));
  EXPECT_EQ(printed(head), "heed::HeadTransform(emb_dim=32, activation=tanh, dropout=0.5)");
}

/// The vector of each sequence, picked by hand.
at::Tensor pick(const at::Tensor& states, Pooling pooling, const std::vector<int64_t>& lengths) {
  std::vector<at::Tensor> rows;
  for (size_t b = 0; b < lengths.size(); ++b) {
    const auto own = states[static_cast<int64_t>(b)].narrow(0, 0, lengths[b]);
    rows.push_back(pooling == Pooling::first  ? own[0]
                   : pooling == Pooling::last ? own[lengths[b] - 1]
                                              : own.to(at::kDouble).mean(0));
  }
  return at::stack(rows);
}

TEST(SequenceClassifier, ClassifiesPooledStatesOfAnEncoder) {
  torch::manual_seed(moved(102));
  const at::NoGradGuard no_grad;
  const auto tokens = padded_tokens(), types = tokens.remainder(2), lengths = some_lengths();
  const auto padding = padding_mask(lengths, L);
  for (const auto pooling : {Pooling::first, Pooling::last, Pooling::mean}) {
    for (const auto& transform : transforms()) {
      SequenceClassifier model(SequenceClassifierOptions(encoder_options(), C)
                                   .pooling(pooling)
                                   .transform(transform)
                                   .dropout(0.5));
      randomize(model);
      model->eval();
      const auto states = model->encoder->forward(tokens, padding, types);
      const auto expected = linear64(
          model->classifier, transform64(model->transform, pick(states, pooling, {L, 3, 5})));
      const auto actual = model->forward(tokens, padding, types);
      EXPECT_EQ(actual.sizes(), at::IntArrayRef({B, C}));
      EXPECT_TRUE(is_close(actual.to(at::kDouble), expected, kTolerance));
      const auto inputs = TransformerInputs().query_lengths(lengths).key_lengths(lengths);
      EXPECT_TRUE(is_close(model->forward(tokens, inputs, types), actual, kTolerance));
    }
  }
}

/// The padding may be anywhere, as in transformers.
TEST(SequenceClassifier, FindsTheLastTokenThatIsNotPadding) {
  torch::manual_seed(moved(103));
  const at::NoGradGuard no_grad;
  SequenceClassifier model(
      SequenceClassifierOptions(decoder_options(), C).padding_token(kPadding).bias(false));
  randomize(model);
  model->eval();
  EXPECT_FALSE(model->decoder->options.head());
  EXPECT_EQ(model->options.pooling(), Pooling::last);
  auto tokens = padded_tokens();
  tokens[1][1] = kPadding;  // within the text
  const auto expected =
      linear64(model->classifier, pick(model->decoder->forward(tokens), Pooling::last, {L, 3, 5}));
  EXPECT_TRUE(is_close(model(tokens).to(at::kDouble), expected, kTolerance));
  // Tokens that a mask hides do not count either. A mask of another shape hides none here.
  const auto shorter = padding_mask(at::tensor({L - 2, int64_t{3}, int64_t{5}}), L);
  const auto of_shorter = linear64(model->classifier, pick(model->decoder->forward(tokens, shorter),
                                                           Pooling::last, {L - 2, 3, 5}));
  EXPECT_TRUE(is_close(model(tokens, shorter).to(at::kDouble), of_shorter, kTolerance));
  EXPECT_TRUE(is_close(model(tokens, causal_mask(L, L)), model(tokens), kTolerance));
  // Padding at the beginning: each sequence is what it is alone, but for its positions.
  const auto left = at::cat({at::ones({1, 2}, at::kLong) * kPadding, tokens.narrow(0, 0, 1)}, 1);
  const auto positions = (at::arange(L + 2) - 2).clamp_min(0);
  const auto inputs = TransformerInputs(key_padding_mask(left.ne(kPadding))).positions(positions);
  EXPECT_TRUE(is_close(model(left, inputs), model(tokens.narrow(0, 0, 1)), kTolerance));
}

TEST(SequenceClassifier, HasTheReferencesGradients) {
  torch::manual_seed(moved(104));
  SequenceClassifier model(SequenceClassifierOptions(encoder_options(), C)
                               .pooling(Pooling::mean)
                               .transform(transforms()[0]));
  randomize(model);
  const auto tokens = padded_tokens(), padding = padding_mask(some_lengths(), L);
  const auto factors = uniform({B, C}, at::kDouble);
  const std::vector<at::Tensor> leaves{
      model->classifier->weight, model->classifier->bias, model->transform->dense->weight,
      model->transform->dense->bias, model->encoder->token_embedding->weight};
  const auto gradients = [&](const at::Tensor& scores) {
    return torch::autograd::grad({(scores.to(at::kDouble) * factors).sum()}, leaves);
  };
  const auto pooled = pick(model->encoder->forward(tokens, padding), Pooling::mean, {L, 3, 5});
  const auto expected =
      gradients(linear64(model->classifier, transform64(model->transform, pooled)));
  const auto actual = gradients(model->forward(tokens, padding));
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(are_alike({actual[i]}, {expected[i]}, 1e-4)) << i;  // through two blocks
  }
}

TEST(SequenceClassifier, TakesAMaskAndTypesInAnyModule) {
  SequenceClassifier model(SequenceClassifierOptions(encoder_options(), C));
  model->eval();
  torch::nn::AnyModule any(model);
  const auto tokens = at::arange(2 * L).view({2, L}), types = tokens.remainder(2);
  const auto mask = padding_mask(at::tensor({L, int64_t{2}}), L);
  EXPECT_TRUE(any.forward(tokens).equal(model(tokens)));
  EXPECT_TRUE(any.forward(tokens, mask, types).equal(model(tokens, mask, types)));
}

TEST(SequenceClassifier, RefusesWhatDoesNotSayWhichTokensCount) {
  SequenceClassifier model(SequenceClassifierOptions(encoder_options(), C));
  const auto tokens = at::ones({B, L}, at::kLong);
  EXPECT_ERROR(
      "SequenceClassifier: mask [7, 7] must be [B or 1, 1, 1, L], as padding_mask returns it, or "
      "query_lengths must be given: they say which tokens are pooled",
      model(tokens, causal_mask(L, L)));
  EXPECT_ERROR(
      "SequenceClassifier: query_lengths must be given with key_lengths: they say which tokens are "
      "pooled",
      model(tokens, TransformerInputs().key_lengths(some_lengths())));
  EXPECT_ERROR(
      "SequenceClassifier: documents must not be given: one vector is pooled of each sequence",
      model(tokens, TransformerInputs().documents(at::zeros({L}, at::kLong))));
  SequenceClassifier of_decoder(SequenceClassifierOptions(decoder_options(), C));
  EXPECT_ERROR("SequenceClassifier: types must be absent: the model is a Decoder",
               of_decoder(tokens, TransformerInputs(), tokens));
}

TEST(SequenceClassifier, RefusesOptionsThatDoNotFit) {
  const auto error = [](const SequenceClassifierOptions& options) {
    return value_error([&] { SequenceClassifier{options}; });
  };
  const SequenceClassifierOptions options(encoder_options(), C);
  const auto with = [&](auto change) {
    auto own = options;
    change(own);
    return error(own);
  };
  EXPECT_EQ(with([](auto& own) { own.num_labels(0); }),
            "SequenceClassifier: num_labels (0) must be at least 1");
  EXPECT_EQ(with([](auto& own) { own.padding_token(V); }),
            "SequenceClassifier: padding_token (50) must be at least 0 and below vocab_size (50)");
  EXPECT_EQ(with([](auto& own) { own.transform(HeadTransformOptions(8)); }),
            "SequenceClassifier: transform emb_dim (8) must equal attention emb_dim (32)");
  EXPECT_EQ(with([](auto& own) { own.model(decoder_options()); }),
            "SequenceClassifier: model must be a decoder without a head: head(false)");
  EXPECT_EQ(printed(SequenceClassifier(options)),
            "heed::SequenceClassifier(num_labels=4, pooling=first)");
  EXPECT_EQ(printed(SequenceClassifier(
                SequenceClassifierOptions(decoder_options(), 1).padding_token(0).bias(false))),
            "heed::SequenceClassifier(num_labels=1, pooling=last, padding_token=0, bias=false)");
}

TEST(TokenClassifier, ClassifiesTheStatesOfEachToken) {
  torch::manual_seed(moved(105));
  const at::NoGradGuard no_grad;
  const auto tokens = padded_tokens(), types = tokens.remainder(2);
  const auto padding = padding_mask(some_lengths(), L);
  TokenClassifier plain(TokenClassifierOptions(encoder_options(), C).dropout(0.5));
  TokenClassifier layered(
      TokenClassifierOptions(encoder_options(), C).transform(transforms()[2]).bias(false));
  TokenClassifier of_decoder(TokenClassifierOptions(decoder_options(), C));
  for (auto* model : {&plain, &layered, &of_decoder}) {
    randomize(*model);
    (*model)->eval();
  }
  const auto states = [&](auto& model) { return model->encoder->forward(tokens, padding, types); };
  EXPECT_TRUE(is_close(plain(tokens, padding, types).to(at::kDouble),
                       linear64(plain->classifier, states(plain)), kTolerance));
  const auto transformed = transform64(layered->transform, states(layered));
  EXPECT_TRUE(is_close(layered(tokens, padding, types).to(at::kDouble),
                       linear64(layered->classifier, transformed), kTolerance));
  EXPECT_TRUE(is_close(of_decoder(tokens, padding).to(at::kDouble),
                       linear64(of_decoder->classifier, of_decoder->decoder(tokens, padding)),
                       kTolerance));
  EXPECT_EQ(of_decoder(tokens).sizes(), at::IntArrayRef({B, L, C}));
  EXPECT_ERROR("TokenClassifier: types must be absent: the model is a Decoder",
               of_decoder(tokens, TransformerInputs(), types));
  EXPECT_ERROR("TokenClassifier: num_labels (-1) must be at least 1",
               TokenClassifier(TokenClassifierOptions(encoder_options(), -1)));
  EXPECT_EQ(printed(plain), "heed::TokenClassifier(num_labels=4, dropout=0.5)");
  EXPECT_EQ(printed(layered), "heed::TokenClassifier(num_labels=4, bias=false)");
}

TEST(MaskedLanguageModel, MultipliesByTheEmbeddings) {
  torch::manual_seed(moved(106));
  const auto tokens = padded_tokens(), types = tokens.remainder(2);
  const auto padding = padding_mask(some_lengths(), L);
  for (const bool bias : {false, true}) {
    MaskedLanguageModel model(MaskedLanguageModelOptions(encoder_options()).bias(bias));
    randomize(model);
    const auto& weight = model->encoder->token_embedding->weight;
    const auto reference = [&] {
      const auto x = transform64(model->transform, model->encoder->forward(tokens, padding, types));
      const auto scores = x.matmul(weight.to(at::kDouble).t());
      return bias ? scores + model->output_bias.to(at::kDouble) : scores;
    };
    const auto actual = model->forward(tokens, padding, types), expected = reference();
    EXPECT_EQ(actual.sizes(), at::IntArrayRef({B, L, V}));
    EXPECT_TRUE(is_close(actual.to(at::kDouble), expected, kTolerance));
    EXPECT_EQ(model->output_bias.defined(), bias);
    const auto factors = uniform({B, L, V}, at::kDouble);
    std::vector<at::Tensor> leaves{weight, model->transform->dense->weight,
                                   model->transform->norm->weight, model->transform->norm->bias};
    if (bias) leaves.push_back(model->output_bias);
    const auto gradients = [&](const at::Tensor& scores) {
      return torch::autograd::grad({(scores.to(at::kDouble) * factors).sum()}, leaves);
    };
    const auto of_model = gradients(actual), of_reference = gradients(expected);
    for (size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_TRUE(are_alike({of_model[i]}, {of_reference[i]}, 1e-4)) << i;  // through two blocks
    }
    EXPECT_EQ(printed(model), bias ? "heed::MaskedLanguageModel(vocab_size=50)"
                                   : "heed::MaskedLanguageModel(vocab_size=50, bias=false)");
  }
  auto narrow = MaskedLanguageModelOptions(encoder_options());
  narrow.transform(HeadTransformOptions(8));
  EXPECT_ERROR("MaskedLanguageModel: transform emb_dim (8) must equal attention emb_dim (32)",
               MaskedLanguageModel{narrow});
}

/// The embedding is packed where it is the last layer's weight too.
TEST(MaskedLanguageModel, IsPacked) {
  torch::manual_seed(moved(107));
  const at::NoGradGuard no_grad;
  const auto tokens = padded_tokens();
  MaskedLanguageModel model{MaskedLanguageModelOptions(encoder_options())};
  randomize(model);
  model->eval();
  const auto expected = model(tokens);
  pack_weights(*model);
  EXPECT_FALSE(model->encoder->token_embedding->weight.has_storage());
  EXPECT_TRUE(are_alike({model(tokens)}, {expected}, 1e-5));
  SequenceClassifier classifier(SequenceClassifierOptions(encoder_options(), C));
  classifier->eval();
  const auto scores = classifier(tokens);
  pack_weights(*classifier);
  EXPECT_TRUE(classifier->encoder->token_embedding->weight.has_storage());
  EXPECT_TRUE(are_alike({classifier(tokens)}, {scores}, 1e-5));
}

}  // namespace
}  // namespace heed::test::of_task_heads
