// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <heed/differential_attention.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <cmath>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test::differential_attention {
namespace {

constexpr int64_t B = 2, E = 32, H = 2, D = 8, L = 9;

/// The paper's formula, term by term in float64.
TEST(DifferentialAttention, IsItsDefinition) {
  torch::manual_seed(moved(1));
  for (const bool causal : {false, true}) {
    DifferentialAttention module(DifferentialAttentionOptions(E, H).layer(3).causal(causal));
    {
      const at::NoGradGuard no_grad;
      module->norm->weight.uniform_(0.5, 1.5);
    }
    const auto x = uniform({B, L, E}, at::kFloat);
    const auto heads = [&](const torch::nn::Linear& linear) {
      return split_heads(linear64(linear, x), H);  // [B, H, L, 2 D]
    };
    const auto query = heads(module->fc_q), key = heads(module->fc_k), value = heads(module->fc_v);
    const auto softmax = [&](int64_t which) {
      return reference({query.narrow(3, which * D, D), key.narrow(3, which * D, D), value},
                       AttendOptions().causal(causal))
          .output;
    };
    const auto dot = [](const at::Tensor& a, const at::Tensor& b) {
      return (a.to(at::kDouble) * b.to(at::kDouble)).sum().item<double>();
    };
    const double first = 0.8 - 0.6 * std::exp(-0.9);
    const double lambda = std::exp(dot(module->lambda_q1, module->lambda_k1)) -
                          std::exp(dot(module->lambda_q2, module->lambda_k2)) + first;
    const auto difference = softmax(0) - lambda * softmax(1);
    const auto normed = difference /
                        (difference.square().mean(-1, /*keepdim=*/true) + 1e-5).sqrt() *
                        module->norm->weight.to(at::kDouble) * (1 - first);
    const auto expected = linear64(module->fc_out, merge_heads(normed));
    // The norm divides by differences that may be small: 1e-7 grows.
    EXPECT_TRUE(is_close(module(x), expected, 2e-5)) << causal;
    module(x).sum().backward();
    for (const auto& parameter : module->named_parameters()) {
      EXPECT_TRUE(is_finite(parameter->grad())) << parameter.key();
      EXPECT_GT(parameter->grad().abs().max().item<double>(), 0.0) << parameter.key();
    }
  }
}

TEST(DifferentialAttention, AllChunksGiveTheNumbersOfTheWhole) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  const auto x = uniform({B, L, E}, at::kFloat);
  for (const int64_t window : {0, 3}) {
    auto options = DifferentialAttentionOptions(E, H).causal(true);
    options.rotary(RotaryEmbeddingOptions(D));
    if (window > 0) options.window(window);
    DifferentialAttention module(options);
    for (const int64_t chunk : {1, 4, 9}) {
      auto cache = module->make_cache(B, L);
      EXPECT_TRUE(is_close(in_chunks(module, x, cache, chunk), module(x), 2e-5)) << chunk;
    }
  }
}

TEST(DifferentialAttention, PrintsAndStandsInASequential) {
  DifferentialAttention module(DifferentialAttentionOptions(E, H));
  const auto x = uniform({B, L, E}, at::kFloat);
  torch::nn::Sequential layers(module);
  EXPECT_TRUE(layers->forward(x).equal(module(x)));
  EXPECT_EQ(printed(module),
            "heed::DifferentialAttention(emb_dim=32, head_num=2, layer=0, dropout=0)");
}

TEST(DifferentialAttention, RefusesWhatDoesNotFit) {
  EXPECT_ERROR("DifferentialAttention: emb_dim (32) must be a multiple of 2 head_num (6)",
               DifferentialAttention(DifferentialAttentionOptions(32, 3)));
  EXPECT_ERROR("DifferentialAttention: layer (-1) must be at least 0",
               DifferentialAttention(DifferentialAttentionOptions(32, 2).layer(-1)));
  DifferentialAttention module(DifferentialAttentionOptions(E, H));
  EXPECT_ERROR("DifferentialAttention: x dim 2 (31) must equal emb_dim (32); x [2, 9, 31]",
               module(at::ones({B, L, 31})));
}

}  // namespace
}  // namespace heed::test::differential_attention
