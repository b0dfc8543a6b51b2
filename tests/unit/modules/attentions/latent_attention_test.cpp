// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <heed/latent_attention.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test::latent_attention {
namespace {

// That it computes what DeepSeek's Python computes is for language_models_test.cpp.

constexpr int64_t B = 2, E = 40, H = 3, R = 16, L = 9;

LatentAttentionOptions latent_options() {
  return LatentAttentionOptions(E, H, R).plain_head_dim(8).rotary_head_dim(4).value_head_dim(6);
}

/// The cache's way, queries taken to the latent space, gives what keys taken out of it give.
TEST(LatentAttention, AllChunksGiveTheNumbersOfTheWhole) {
  torch::manual_seed(moved(1));
  const at::NoGradGuard no_grad;
  const auto x = uniform({B, L, E}, at::kFloat);
  for (const bool query_rank : {false, true}) {
    auto options = latent_options();
    if (query_rank) options.query_rank(12);
    LatentAttention module(options);
    const auto whole = module(x);
    for (const int64_t chunk : {1, 4, 9}) {
      auto cache = module->make_cache(B, L);
      EXPECT_TRUE(is_close(in_chunks(module, x, cache, chunk), whole, 1e-5)) << chunk;
    }
    // Prompts of 7 and 3 tokens, padded.
    auto cache = module->make_cache(B, L);
    module->forward_cached(x.narrow(1, 0, 7), cache, {7, 3});
    const auto token =
        at::cat({x.narrow(0, 0, 1).narrow(1, 7, 1), x.narrow(0, 1, 1).narrow(1, 3, 1)});
    const auto next = module->forward_cached(token, cache);
    EXPECT_TRUE(is_close(next[0], whole[0].narrow(0, 7, 1), 1e-5));
    EXPECT_TRUE(is_close(next[1], whole[1].narrow(0, 3, 1), 1e-5));
  }
}

TEST(LatentAttention, CachesTheLatentVectorAndTheRotatedKeyAlone) {
  LatentAttention module(latent_options());
  const auto cache = module->make_cache(B, 100);
  EXPECT_EQ(cache.options().groups(), 1);
  EXPECT_EQ(cache.options().head_dim(), R + 4);
  EXPECT_EQ(cache.options().value_head_dim(), 0);
}

TEST(LatentAttention, HasBiasesWhereDeepSeekHas) {
  torch::manual_seed(moved(3));
  const LatentAttention module(latent_options().query_rank(12).bias(true));
  for (const auto& parameter : module->named_parameters()) {
    const auto& name = parameter.key();
    const bool is_bias = name.size() > 5 && name.substr(name.size() - 5) == ".bias";
    EXPECT_EQ(is_bias, name == "fc_q_down.bias" || name == "fc_kv_down.bias" || name == "fc_o.bias")
        << name;
  }
  EXPECT_EQ(module->named_parameters().size(), 10);
  LatentAttention without(latent_options().query_rank(12));
  const auto x = uniform({B, L, E}, at::kFloat);
  {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : without->named_parameters()) {
      parameter.value().copy_(module->named_parameters()[parameter.key()]);
    }
  }
  // The bias of the last projection is added to every output; those of the others are 0 here.
  const at::NoGradGuard no_grad;
  auto own = module;
  own->fc_q_down->bias.zero_();
  own->fc_kv_down->bias.zero_();
  EXPECT_TRUE(is_close(own(x), without(x) + own->fc_o->bias, 1e-6));
}

TEST(LatentAttention, GivesEveryParameterAGradient) {
  torch::manual_seed(moved(2));
  LatentAttention module(latent_options().query_rank(12).dropout(0.1));
  module(uniform({B, L, E}, at::kFloat)).square().sum().backward();
  for (const auto& parameter : module->named_parameters()) {
    EXPECT_TRUE(is_finite(parameter->grad())) << parameter.key();
    EXPECT_GT(parameter->grad().abs().max().item<double>(), 0.0) << parameter.key();
  }
}

TEST(LatentAttention, PrintsAndStandsInASequential) {
  LatentAttention module(latent_options());
  const auto x = uniform({B, L, E}, at::kFloat);
  torch::nn::Sequential layers(module);
  EXPECT_TRUE(layers->forward(x).equal(module(x)));
  EXPECT_EQ(printed(module),
            "heed::LatentAttention(emb_dim=40, head_num=3, key_rank=16, plain_head_dim=8, "
            "rotary_head_dim=4, value_head_dim=6)");
}

TEST(LatentAttention, RefusesWhatDoesNotFit) {
  EXPECT_ERROR("LatentAttention: key_rank (0) must be at least 1",
               LatentAttention(LatentAttentionOptions(E, H, 0)));
  EXPECT_ERROR("LatentAttention: rotary head_dim (8) must equal the module's head dim (4)",
               LatentAttention(latent_options().rotary(RotaryEmbeddingOptions(8))));
  LatentAttention module(latent_options());
  EXPECT_ERROR("LatentAttention: x dim 2 (31) must equal emb_dim (40); x [2, 9, 31]",
               module(at::ones({B, L, 31})));
}

}  // namespace
}  // namespace heed::test::latent_attention
