// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <heed/adapters.h>
#include <heed/autocast.h>
#include <heed/decoder.h>
#include <heed/latent_attention.h>
#include <heed/linear.h>
#include <heed/multi_head_attention.h>
#include <heed/pack_weights.h>
#include <heed/paged_kv_cache.h>
#include <heed/text_encoder.h>
#include <heed/weights.h>
#include <torch/nn/modules/activation.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/transformers.h"

namespace heed::test::of_pack_weights {
namespace {

constexpr int64_t B = 2, E = 64, H = 4, G = 2, L = 9, V = 70;

constexpr PackFormat kFormats[] = {PackFormat::as_is,   PackFormat::float32, PackFormat::bfloat16,
                                   PackFormat::float16, PackFormat::int8,    PackFormat::int4};

/// The largest difference that a format may make in a model's scores, as a part of the largest one.
double tolerance_of(PackFormat format) {
  switch (format) {
    case PackFormat::as_is:
    case PackFormat::float32:
      return 1e-5;
    case PackFormat::float16:
      return 2e-3;
    case PackFormat::bfloat16:
    case PackFormat::int8:
      return 2e-2;
    case PackFormat::int4:
      return 0.3;
  }
  return 0;
}

Decoder make_decoder(bool tied, at::ScalarType dtype = at::kFloat, bool score_bias = false) {
  auto block = llama_options(E, H, G);
  block.feed_forward(
      FeedForwardOptions(E).activation(Activation::swiglu).bias(false).hidden_dim(2 * E));
  Decoder model(DecoderOptions(V, block, 2).tied_head(tied).score_bias(score_bias));
  model->to(dtype);
  model->eval();
  return model;
}

TEST(PackWeights, KeepsTheScoresOfADecoder) {
  torch::manual_seed(moved(81));
  const at::NoGradGuard no_grad;
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  for (const bool tied : {false, true}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const auto format : kFormats) {
        SCOPED_TRACE(c10::str(tied, " ", dtype, " ", static_cast<int>(format)));
        auto model = make_decoder(tied, dtype);
        const auto expected = model->forward(tokens);
        pack_weights(*model, format);
        const auto close = tolerance_of(format) + 8 * unit_roundoff(dtype);
        const auto scores = model->forward(tokens);
        EXPECT_EQ(scores.scalar_type(), dtype);
        EXPECT_TRUE(are_alike({scores}, {expected}, close));
        // All ways to compute scores have the same weights.
        const auto same = 8 * unit_roundoff(dtype);
        auto caches = model->make_caches(B, L);
        EXPECT_TRUE(are_alike({model->forward_cached(tokens, caches)}, {scores}, same));
        auto pages = model->make_paged_cache(8);
        const auto sequence = pages.add();
        auto step = pages.append({sequence}, {L});
        EXPECT_TRUE(are_alike({model->forward_cached(tokens.narrow(0, 0, 1), step)},
                              {scores.narrow(0, 0, 1)}, same));
      }
    }
  }
}

TEST(PackWeights, PacksEmbeddingsAsAsked) {
  torch::manual_seed(moved(82));
  const at::NoGradGuard no_grad;
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  auto untied = make_decoder(false);
  const auto expected = untied->forward(tokens);
  const auto plain = std::dynamic_pointer_cast<DecoderImpl>(untied->clone());
  pack_weights(*plain, PackFormat::int8);
  EXPECT_TRUE(plain->token_embedding->weight.has_storage());
  pack_weights(*untied, PackOptions(PackFormat::int8).embedding_format(PackFormat::int8));
  EXPECT_FALSE(untied->token_embedding->weight.has_storage());
  EXPECT_TRUE(are_alike({untied->forward(tokens)}, {expected}, 4e-2));
  EXPECT_TRUE(are_alike({plain->forward(tokens)}, {expected}, 2e-2));
}

TEST(PackWeights, GivesTheLossOfItsScores) {
  torch::manual_seed(moved(83));
  const auto tokens = at::randint(V, {B, L + 1}, at::kLong);
  const auto inputs = tokens.narrow(1, 0, L), targets = tokens.narrow(1, 1, L);
  for (const bool tied : {false, true}) {
    auto model = make_decoder(tied);
    const auto expected = model->loss(inputs, targets).detach();
    pack_weights(*model, PackFormat::bfloat16);
    // Nothing requires grad any more, so that no guard is needed.
    EXPECT_TRUE(are_alike({model->loss(inputs, targets)}, {expected}, 1e-2));
  }
}

/// The loss of the scores that a model computes for the tokens.
at::Tensor loss_of_scores(Decoder& model, const at::Tensor& tokens, const at::Tensor& targets) {
  const auto scores = model->forward(tokens);
  const Autocast as_it_is(at::kCPU, at::kFloat);
  return at::cross_entropy_loss(scores.flatten(0, 1).to(at::kDouble), targets.flatten());
}

/// With and without gradients, with a bias of the scores and without.
TEST(PackWeights, GivesTheLossOfItsScoresUnderAutocast) {
  torch::manual_seed(moved(86));
  const auto tokens = at::randint(V, {B, L + 1}, at::kLong);
  const auto inputs = tokens.narrow(1, 0, L), targets = tokens.narrow(1, 1, L);
  for (const bool tied : {false, true}) {
    for (const bool biased : {false, true}) {
      for (const bool records : {false, true}) {
        for (const auto dtype : {at::kFloat, at::kBFloat16}) {
          SCOPED_TRACE(c10::str(tied, " ", biased, " ", records, " ", dtype));
          auto model = make_decoder(tied, at::kFloat, biased);
          if (biased) model->score_bias.uniform_(-1, 1);
          pack_weights(*model, PackFormat::int8);
          if (records) {
            add_adapter(*model, LoraOptions(2).target_modules({"fc_q", "fc_v"}));
            model->eval();
          }
          const Autocast autocast(at::kCPU, dtype);
          const auto loss = model->loss(inputs, targets);
          EXPECT_EQ(loss.requires_grad(), records);
          // `loss` adds the bias to the scores before they are rounded.
          const auto expected = loss_of_scores(model, inputs, targets);
          EXPECT_TRUE(are_alike({loss}, {expected}, 8 * unit_roundoff(dtype)));
        }
      }
    }
  }
}

/// A module of a user.
struct Net : public torch::nn::Module {
  Net() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) const {
    return heed::linear(second, heed::linear(first, x).relu());
  }
  torch::nn::Linear first{32, 48}, second{torch::nn::LinearOptions(48, 8).bias(false)};
};

TEST(PackWeights, TakesAModuleThatCallsHeedsLinear) {
  torch::manual_seed(moved(84));
  Net net;
  const auto x = uniform({3, 32}, at::kFloat);
  const auto expected = net.forward(x).detach();
  pack_weights(net);
  EXPECT_TRUE(are_alike({net.forward(x)}, {expected}, 1e-5));
  const auto text = error_text<c10::Error>([&] { net.first->forward(x); });
  EXPECT_NE(text.find("multiply by it with heed::linear(fc, x)"), std::string::npos) << text;
}

TEST(PackWeights, LeavesTheProjectionThatLatentAttentionReads) {
  torch::manual_seed(moved(85));
  const at::NoGradGuard no_grad;
  LatentAttention attention(LatentAttentionOptions(E, H, 32));
  attention->eval();
  const auto x = uniform({B, L, E}, at::kFloat);
  const auto expected = attention->forward(x);
  pack_weights(*attention);
  EXPECT_TRUE(attention->fc_kv_up->weight.has_storage());
  EXPECT_FALSE(attention->fc_kv_down->weight.has_storage());
  EXPECT_TRUE(are_alike({attention->forward(x)}, {expected}, 1e-5));
}

TEST(PackWeights, AreSharedByClones) {
  torch::manual_seed(moved(86));
  const at::NoGradGuard no_grad;
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  for (const bool tied : {false, true}) {
    auto model = make_decoder(tied);
    pack_weights(*model, PackFormat::int8);
    const auto scores = model->forward(tokens);
    const auto copy = std::dynamic_pointer_cast<DecoderImpl>(model->clone());
    EXPECT_TRUE(are_equal({copy->forward(tokens)}, {scores}));
    // All else is the clone's own.
    for (auto& parameter : copy->parameters()) {
      if (parameter.has_storage()) parameter.zero_();
    }
    EXPECT_TRUE(are_equal({model->forward(tokens)}, {scores}));
  }
  MultiHeadAttention attention(E, H);
  attention->eval();
  pack_weights(*attention);
  const auto copy = std::dynamic_pointer_cast<MultiHeadAttentionImpl>(attention->clone());
  const auto x = uniform({B, L, E}, at::kFloat), y = attention->forward(x);
  EXPECT_TRUE(are_equal({copy->forward(x)}, {y}));
  copy->fc_out->bias.fill_(7.0);
  EXPECT_TRUE(are_equal({attention->forward(x)}, {y}));
  EXPECT_ERROR("clone: device (meta) must be the CPU for packed weights",
               attention->clone(at::Device(at::kMeta)));
}

TEST(PackWeightsErrors, NameWhatPackedModulesCannotDo) {
  auto model = make_decoder(/*tied=*/false);
  pack_weights(*model);
  const std::string must = ": weights must not be packed by pack_weights";
  torch::serialize::OutputArchive written;
  EXPECT_ERROR("save" + must + ": save_weights writes them", model->save(written));
  torch::serialize::InputArchive read;
  EXPECT_ERROR("load" + must, model->load(read));
  const std::string of_dtype = "must be Float, that of the weights when pack_weights packed them";
  EXPECT_ERROR("to: dtype (Double) " + of_dtype, model->to(at::kDouble));
  EXPECT_ERROR("to: dtype (BFloat16) " + of_dtype, model->to(at::kCPU, at::kBFloat16));
  const std::string of_device = "must be the CPU for weights that are packed by pack_weights";
  EXPECT_ERROR("to: device (meta) " + of_device, model->to(at::Device(at::kMeta)));
  // An attention converts its slopes in its own way.
  MultiHeadAttention attention(MultiHeadAttentionOptions(E, H).alibi(true));
  pack_weights(*attention);
  EXPECT_ERROR("to: dtype (Double) " + of_dtype, attention->to(at::kDouble));
  for (const auto& parameter : model->parameters()) {
    EXPECT_EQ(parameter.scalar_type(), at::kFloat);
    EXPECT_TRUE(parameter.is_cpu());
  }
}

TEST(PackWeights, StayWhereAModuleIsConvertedToWhatItIs) {
  torch::manual_seed(moved(87));
  const at::NoGradGuard no_grad;
  auto model = make_decoder(/*tied=*/true);
  pack_weights(*model, PackFormat::int8);
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const auto scores = model->forward(tokens);
  model->to(at::kCPU);
  model->to(at::kFloat);
  model->to(at::kCPU, at::kFloat);
  model->eval();
  model->zero_grad();
  EXPECT_TRUE(are_equal({model->forward(tokens)}, {scores}));
}

TEST(PackWeightsErrors, NameOptionsAndWeights) {
  const auto expect = [](const std::string& text, const PackOptions& options, const auto& prepare) {
    MultiHeadAttention attention(48, 4);
    prepare(*attention);
    EXPECT_ERROR("pack_weights: " + text, pack_weights(*attention, options));
    // Nothing is changed.
    EXPECT_TRUE(attention->fc_k->weight.has_storage());
    EXPECT_TRUE(attention->fc_q->bias.requires_grad());
  };
  const auto nothing = [](MultiHeadAttentionImpl&) {};
  const auto set_last = [](double value) {
    return [value](MultiHeadAttentionImpl& module) {
      const at::NoGradGuard no_grad;
      module.fc_out->weight[2][3] = value;
    };
  };
  expect("group_size (48) must be 32, 64 or 128", PackOptions(PackFormat::int4).group_size(48),
         nothing);
  expect("zero_point needs the format int4", PackOptions(PackFormat::int8).zero_point(true),
         nothing);
  expect("quantize_activations needs the format int8 or int4",
         PackOptions(PackFormat::bfloat16).quantize_activations(true), nothing);
  expect("inputs of fc_q.weight (48) must be divisible by group_size (32)", PackFormat::int4,
         nothing);
  const auto of_last = std::string("fc_out.weight must be finite in its format; its largest ");
  expect(of_last + "magnitude is nan", PackFormat::int8, set_last(std::nan("")));
  expect(of_last + "magnitude is inf", PackFormat::as_is,
         set_last(-std::numeric_limits<double>::infinity()));
  expect(of_last + "magnitude is 70000", PackFormat::float16, set_last(70000));
  expect("fc_q.weight dtype (Double) must be float32, bfloat16 or float16", {},
         [](MultiHeadAttentionImpl& module) { module.to(at::kDouble); });
  expect("fc_q.weight must be a strided tensor on the CPU; device meta", {},
         [](MultiHeadAttentionImpl& module) {
           module.fc_q->weight = at::empty({48, 48}, at::device(at::kMeta));
         });
}

TEST(PackWeightsErrors, NameARangeThatIsTooLarge) {
  MultiHeadAttention attention(E, H);
  {
    const at::NoGradGuard no_grad;
    attention->fc_q->weight[2][3] = 0x1p127;
  }
  EXPECT_ERROR(
      "pack_weights: fc_q.weight must be finite in its format; its largest magnitude is "
      "1.7014118346046923e+38",
      pack_weights(*attention, PackOptions(PackFormat::int4).zero_point(true)));
  pack_weights(*attention, PackFormat::int4);
}

TEST(PackWeightsErrors, NameModules) {
  EXPECT_ERROR("pack_weights: module must have a Linear", pack_weights(*torch::nn::Tanh()));
  MultiHeadAttention attention(E, H);
  pack_weights(*attention);
  EXPECT_ERROR("pack_weights: fc_q.weight must not be packed already", pack_weights(*attention));
  torch::nn::MultiheadAttention libtorchs(
      torch::nn::MultiheadAttentionOptions(/*embed_dim=*/8, /*num_heads=*/2));
  EXPECT_ERROR(
      "pack_weights: module must not be LibTorch's MultiheadAttention, which reads its Linear "
      "itself",
      pack_weights(*libtorchs));
}

}  // namespace
}  // namespace heed::test::of_pack_weights
