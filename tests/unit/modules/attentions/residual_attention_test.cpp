// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/layer_norm.h>
#include <gtest/gtest.h>
#include <heed/residual_attention.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test::of_residual_attention {
namespace {

/// As in modules_test.cpp: up to five products of sums of up to 12 terms, each below 2 in size.
const double kTolerance = 64 * unit_roundoff(at::kFloat);

at::Tensor normed(const ResidualAttention& module, const at::Tensor& x) {
  return at::layer_norm(x, {12}, module->layer_norm->weight.to(at::kDouble),
                        module->layer_norm->bias.to(at::kDouble), 1e-6);
}

at::Tensor attended(ResidualAttention& module, const at::Tensor& query, const at::Tensor& key) {
  auto& attention = module->attention;
  const auto result = reference({split_heads(linear64(attention->fc_q, query), 3),
                                 split_heads(linear64(attention->fc_k, key), 3),
                                 split_heads(linear64(attention->fc_v, key), 3)},
                                AttendOptions());
  return linear64(attention->fc_out, merge_heads(result.output));
}

/// LayerNorm divides by a deviation that may be near 0.3, after a sum of values of size 1.
const double kNormTolerance = 4 * kTolerance;

TEST(ResidualAttention, NormalizesAfterOrBefore) {
  torch::manual_seed(moved(3));
  const at::NoGradGuard no_grad;
  const auto x = uniform({2, 5, 12}, at::kFloat);
  const auto memory = uniform({2, 7, 12}, at::kFloat);
  const auto options = ResidualAttentionOptions(MultiHeadAttentionOptions(12, 3));
  ResidualAttention post(options);
  post->eval();
  const auto x64 = x.to(at::kDouble);
  EXPECT_TRUE(is_close(post(x), normed(post, x64 + attended(post, x64, x64)), kNormTolerance));
  EXPECT_TRUE(is_close(post(x, memory, memory), normed(post, x64 + attended(post, x64, memory)),
                       kNormTolerance));
  EXPECT_TRUE(std::get<0>(post->forward_with_weights(x, x, x)).allclose(post(x), 0, 1e-5));

  ResidualAttention pre(ResidualAttentionOptions(options).norm_first(true));
  pre->eval();
  const auto inner = normed(pre, x64);
  EXPECT_TRUE(is_close(pre(x), x64 + attended(pre, inner, inner), kNormTolerance));
  EXPECT_TRUE(is_close(pre(x, memory, memory), x64 + attended(pre, inner, memory), kNormTolerance));
}

TEST(ResidualAttention, DropsOutputsInTrainingMode) {
  torch::manual_seed(moved(4));
  auto options = MultiHeadAttentionOptions(12, 3).dropout(0.0);
  ResidualAttention module(ResidualAttentionOptions(options).dropout(0.5).norm_first(true));
  const auto x = uniform({4, 50, 12}, at::kFloat);
  // Pre-norm leaves x where the attention's output was dropped: half of 2400 elements, 5 sigma.
  EXPECT_NEAR(module(x).eq(x).to(at::kDouble).mean().item<double>(), 0.5, 0.051);
}

TEST(ResidualAttention, SitsInSequentialAndPrints) {
  torch::manual_seed(moved(5));
  ResidualAttention module(ResidualAttentionOptions(MultiHeadAttentionOptions(12, 3)));
  torch::nn::Sequential sequential(module);
  sequential->eval();
  const auto x = uniform({2, 3, 12}, at::kFloat);
  EXPECT_TRUE(sequential->forward(x).equal(module(x)));
  EXPECT_EQ(printed(module), "heed::ResidualAttention(dropout=0.1, norm_first=false, eps=1e-06)");
  EXPECT_ERROR("ResidualAttention: dropout (1) must be in [0, 1)",
               ResidualAttention wrong(
                   ResidualAttentionOptions(MultiHeadAttentionOptions(12, 3)).dropout(1.0)));
  EXPECT_ERROR("ResidualAttention: query dim 2 (10) must equal emb_dim (12); query [2, 3, 10]",
               module(uniform({2, 3, 10}, at::kFloat)));
}

}  // namespace
}  // namespace heed::test::of_residual_attention
