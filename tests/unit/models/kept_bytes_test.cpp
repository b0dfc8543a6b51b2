// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/feed_forward.h>
#include <heed/multi_head_attention.h>
#include <heed/norm.h>
#include <heed/transformer.h>
#include <torch/utils.h>

#include <cstdint>

#include "cpu/capability.h"
#include "support/inputs.h"
#include "support/memory.h"
#include "support/transformers.h"

/// The table of docs/training.md, "Memory": the bytes that modules keep for the backward pass.

namespace heed::test::of_kept_bytes {
namespace {

constexpr int64_t B = 2, L = 32, E = 64, H = 4, G = 2, F = 96, V = 50;
constexpr int64_t kGroupWidth = E / H * G;
constexpr int64_t kStatistics = 2;  // of a row of a layer_norm, or of a query of a head

/// The bytes for each token that are still in use after a forward pass, besides input and output.
template <typename Module>
int64_t kept_bytes(Module& module, const at::Tensor& input) {
  module(input);  // computes what later calls share, such as angles
  const AllocationCounter counter;
  const auto output = module(input);
  const auto kept = counter.live() - static_cast<int64_t>(output.nbytes());
  EXPECT_EQ(kept % (B * L), 0);
  return kept / (B * L);
}

/// kept_bytes in numbers of float32, for an input [B, L, E].
template <typename Module>
int64_t kept_numbers(Module module) {
  const auto bytes = kept_bytes(module, uniform({B, L, E}, at::kFloat).requires_grad_());
  EXPECT_EQ(bytes % 4, 0);
  return bytes / 4;
}

class KeptBytes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!detail::has_kernels()) GTEST_SKIP() << "there are no kernels";
  }
};

TEST_F(KeptBytes, OfNorms) {
  EXPECT_EQ(kept_numbers(Norm(NormOptions(E).kind(NormKind::rms_norm))), 0);
  EXPECT_EQ(kept_numbers(Norm(NormOptions(E))), kStatistics);
}

TEST_F(KeptBytes, OfFeedForward) {
  for (const double dropout : {0.0, 0.2}) {
    const auto kept = [&](Activation activation) {
      return kept_numbers(
          FeedForward(FeedForwardOptions(E).hidden_dim(F).activation(activation).dropout(dropout)));
    };
    EXPECT_EQ(kept(Activation::swiglu), 2 * F);
    EXPECT_EQ(kept(Activation::gelu), 2 * F);
    EXPECT_EQ(kept(Activation::silu), 2 * F);
    EXPECT_EQ(kept(Activation::relu), dropout == 0.0 ? F : 2 * F);
    EXPECT_EQ(kept(Activation::reglu), 3 * F);
    EXPECT_EQ(kept(Activation::geglu), 4 * F);
  }
}

TEST_F(KeptBytes, OfAttention) {
  for (const double dropout : {0.0, 0.2}) {
    EXPECT_EQ(kept_numbers(MultiHeadAttention(MultiHeadAttentionOptions(E, H).dropout(dropout))),
              4 * E + kStatistics * H);
    const auto grouped = GroupQueryAttentionOptions(E, H, G).causal(true).dropout(dropout);
    constexpr int64_t kExpected = 2 * E + 2 * kGroupWidth + kStatistics * H;
    EXPECT_EQ(kept_numbers(GroupQueryAttention(grouped)), kExpected);
    auto rotated = grouped;
    rotated.rotary(RotaryEmbeddingOptions(E / H));
    EXPECT_EQ(kept_numbers(GroupQueryAttention(rotated)), kExpected);
  }
}

constexpr int64_t kAttention = 2 * E + 2 * kGroupWidth + kStatistics * H;

TEST_F(KeptBytes, OfTransformerBlock) {
  for (const double dropout : {0.0, 0.2}) {
    auto llama = llama_options(E, H, G).dropout(dropout);
    llama.feed_forward().hidden_dim(F).dropout(dropout);
    EXPECT_EQ(kept_numbers(TransformerBlock(llama)), E + kAttention + 2 * F);
    auto gpt = block_options(E, H, G).dropout(dropout);
    gpt.feed_forward().hidden_dim(F);
    EXPECT_EQ(kept_numbers(TransformerBlock(gpt)), E + kAttention + 2 * F + 2 * kStatistics);
  }
}

TEST_F(KeptBytes, OfDecoder) {
  constexpr int64_t kLayers = 3;
  auto block = llama_options(E, H, G);
  block.feed_forward().hidden_dim(F);
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  for (const bool is_tied : {true, false}) {
    Decoder model(DecoderOptions(V, block, kLayers).tied_head(is_tied));
    // The blocks' inputs and the last one's output too.
    constexpr int64_t kExpected = kLayers * (E + kAttention + 2 * F) + (kLayers + 1) * E;
    EXPECT_EQ(kept_bytes(model, tokens), 4 * kExpected) << is_tied;
  }
}

}  // namespace
}  // namespace heed::test::of_kept_bytes
