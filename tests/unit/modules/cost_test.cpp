// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <c10/util/StringUtil.h>
#include <gtest/gtest.h>
#include <heed/cost.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "core/forced_path.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/memory.h"
#include "support/modules.h"

namespace heed::test::of_cost {
namespace {

constexpr int64_t B = 2, L = 24, S = 40, E = 32, H = 4, G = 2, D = 8;

/// Bytes that `forward` leaves allocated beside its output.
template <typename Forward>
int64_t kept_bytes(Forward&& forward) {
  const AllocationCounter counter;
  const auto output = forward();
  return counter.live() - static_cast<int64_t>(output.nbytes());
}

/// A document's multi-head attention, one operator after another.
at::Tensor unfused(MultiHeadAttention& module, const at::Tensor& x) {
  const auto query = split_heads(module->fc_q(x), H);
  const auto key = split_heads(module->fc_k(x), H);
  const auto value = split_heads(module->fc_v(x), H);
  auto weights = at::softmax(at::matmul(query, key.transpose(2, 3)) / std::sqrt(double{D}), -1);
  if (module->is_training()) weights = at::dropout(weights, module->options.dropout(), true);
  return module->fc_out(at::matmul(weights, value).transpose(1, 2).contiguous().view({B, L, E}));
}

TEST(AttentionCost, ActivationBytesAreThoseAllocated) {
  const detail::ScopedPath scope(AttendPath::block);
  const auto x = uniform({B, L, E}, at::kFloat);
  const auto memory = uniform({B, S, E}, at::kFloat);
  Attention attention(E, 0.0);
  EXPECT_EQ(attention_cost(*attention, B, L).fused_activation_bytes,
            kept_bytes([&] { return attention(x); }));
  AttentionV1 packed(E, 0.0);
  EXPECT_EQ(attention_cost(*packed, B, L).fused_activation_bytes,
            kept_bytes([&] { return packed(x); }));
  MultiHeadAttention multi_head(MultiHeadAttentionOptions(E, H).dropout(0.0));
  EXPECT_EQ(attention_cost(*multi_head, B, L, S).fused_activation_bytes,
            kept_bytes([&] { return multi_head(x, memory, memory); }));
  EXPECT_EQ(attention_cost(*multi_head, B, L).unfused_activation_bytes,
            kept_bytes([&] { return unfused(multi_head, x); }));
  GroupQueryAttention grouped(E, H, G);
  EXPECT_EQ(attention_cost(*grouped, B, L).fused_activation_bytes,
            kept_bytes([&] { return grouped(x); }));

  multi_head->options.dropout(0.1);
  EXPECT_EQ(attention_cost(*multi_head, B, L).unfused_activation_bytes,
            kept_bytes([&] { return unfused(multi_head, x); }));
}

TEST(AttentionCost, KnowsLatentAndDifferentialAttention) {
  const detail::ScopedPath scope(AttendPath::block);
  const auto x = uniform({B, L, E}, at::kFloat);
  const int64_t few_scalars = 64;  // bytes: lambda's
  DifferentialAttention difference(DifferentialAttentionOptions(E, H));
  auto cost = attention_cost(*difference, B, L);
  EXPECT_NEAR(static_cast<double>(kept_bytes([&] { return difference(x); })),
              static_cast<double>(cost.fused_activation_bytes), few_scalars);
  EXPECT_EQ(cost.parameters, 4 * E * E + 4 * (E / (2 * H)) + E / H);
  EXPECT_EQ(cost.projection_macs, B * L * 4 * E * E);
  // Two products QK^T of heads of E / 2 H, and two with values of E / H.
  EXPECT_EQ(cost.attention_macs, B * L * L * (E + 2 * E));
  EXPECT_EQ(cost.kv_cache_bytes, 2 * B * L * E * 4);
  for (const bool low_rank_queries : {false, true}) {
    auto options = LatentAttentionOptions(E, H, 12).plain_head_dim(8).rotary_head_dim(4);
    options.value_head_dim(6);
    if (low_rank_queries) options.query_rank(10);
    LatentAttention latent(options);
    latent(x);  // the angles are kept once for all calls
    cost = attention_cost(*latent, B, L);
    EXPECT_EQ(kept_bytes([&] { return latent(x); }), cost.fused_activation_bytes);
    EXPECT_EQ(cost.kv_cache_bytes, B * L * (12 + 4) * 4);
    EXPECT_EQ(cost.attention_macs, B * H * L * L * (12 + 6));
    const int64_t queries = low_rank_queries ? (E + H * 12) * 10 : E * H * 12;
    EXPECT_EQ(cost.projection_macs, B * L * (queries + E * 16 + 12 * H * (8 + 6) + H * 6 * E));
  }
}

TEST(AttentionCost, OfScaledDotProductAttentionIsTheCalls) {
  ScaledDotProductAttention module(2.0, 0.0);
  const auto query = uniform({B, H, L, D}, at::kFloat);
  const auto key = uniform({B, G, S, D}, at::kFloat), value = uniform({B, G, S, 6}, at::kFloat);
  const auto cost = attention_cost(*module, query, key, value);
  EXPECT_EQ(cost.parameters, 0);
  EXPECT_EQ(cost.projection_macs, 0);
  EXPECT_EQ(cost.attention_macs, B * H * L * S * (D + 6));
  EXPECT_EQ(cost.fused_activation_bytes, 2 * B * H * L * 4);
  EXPECT_EQ(cost.unfused_activation_bytes, B * H * L * S * 4);
  EXPECT_EQ(cost.kv_cache_bytes, B * G * S * (D + 6) * 4);
}

TEST(AttentionCost, CountsByHand) {
  MultiHeadAttention module(MultiHeadAttentionOptions(E, H)
                                .key_emb_dim(10)
                                .value_emb_dim(12)
                                .head_dim(6)
                                .value_head_dim(5)
                                .output_bias(false));
  module->to(at::kDouble);
  module->eval();
  const auto cost = attention_cost(*module, B, L, S);
  EXPECT_EQ(cost.parameters, (E + 1) * 24 + (10 + 1) * 24 + (12 + 1) * 20 + 20 * E);
  EXPECT_EQ(cost.projection_macs, B * (L * E * 24 + S * 10 * 24 + S * 12 * 20 + L * 20 * E));
  EXPECT_EQ(cost.attention_macs, B * H * L * S * (6 + 5));
  EXPECT_EQ(cost.kv_cache_bytes, B * S * H * (6 + 5) * 8);
  EXPECT_EQ(cost.unfused_activation_bytes,
            8 * (B * L * H * (6 + 5) + B * S * H * (6 + 5) + B * H * L * S));

  GroupQueryAttention grouped(E, H, G);
  EXPECT_EQ(attention_cost(*grouped, 1, 1, S).kv_cache_bytes, 2 * S * G * D * 4);
  SelfAttention shared(E, H);
  const auto shared_cost = attention_cost(*shared, B, L);
  EXPECT_EQ(shared_cost.parameters, 3 * D * D + E * E + E);
  EXPECT_EQ(shared_cost.projection_macs, B * L * (3 * H * D * D + E * E));
  ResidualAttention residual(ResidualAttentionOptions(MultiHeadAttentionOptions(E, H)));
  EXPECT_EQ(attention_cost(*residual, B, L).parameters,
            attention_cost(*residual->attention, B, L).parameters + 2 * E);
}

/// 8192 wide, 4096 queries, 2^20 keys and a large batch: more than 2^63.
TEST(AttentionCost, StaysAtTheLargestThereIs) {
  constexpr auto kLargest = std::numeric_limits<int64_t>::max();
  GroupQueryAttention module(64, 8, 2);
  const auto cost = attention_cost(*module, int64_t{1} << 20, int64_t{1} << 20, int64_t{1} << 30);
  EXPECT_EQ(cost.attention_macs, kLargest);
  EXPECT_EQ(cost.unfused_activation_bytes, kLargest);
  EXPECT_EQ(cost.projection_macs,
            (int64_t{1} << 40) * (2 * 64 * 64) + (int64_t{1} << 50) * (2 * 64 * 16));
  Attention single(8);
  EXPECT_EQ(attention_cost(*single, kLargest, 2).projection_macs, kLargest);
  EXPECT_EQ(attention_cost(*single, kLargest, kLargest).kv_cache_bytes, kLargest);
}

TEST(AttentionCost, PrintsATable) {
  AttentionV1 module(8, 0.0);
  EXPECT_EQ(c10::str(attention_cost(*module, 1, 10)),
            "parameters                                 216\n"
            "projection multiply-adds                  1920\n"
            "attention multiply-adds                   1600\n"
            "activation bytes, fused                   1040\n"
            "activation bytes, unfused                 1360\n"
            "key/value cache bytes                      640\n");
  EXPECT_ERROR("attention_cost: batch (-1) must be at least 0", attention_cost(*module, -1, 10));
}

}  // namespace
}  // namespace heed::test::of_cost
