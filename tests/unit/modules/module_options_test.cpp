// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/alibi.h>
#include <heed/attend.h>
#include <heed/attention.h>
#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/norm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test {
namespace {

TEST(Modules, PrintTheirOptions) {
  EXPECT_EQ(printed(Attention(8)), "heed::Attention(emb_dim=8, dropout=0.1)");
  EXPECT_EQ(printed(AttentionV1(8, 0.25)), "heed::AttentionV1(emb_dim=8, dropout=0.25)");
  EXPECT_EQ(printed(MultiHeadAttention(8, 2)),
            "heed::MultiHeadAttention(emb_dim=8, head_nums=2, dropout=0.1)");
  EXPECT_EQ(printed(GroupQueryAttention(8, 4, 2)),
            "heed::GroupQueryAttention(emb_dim=8, head_num=4, group_num=2, dropout=0)");
  EXPECT_EQ(printed(GroupQueryAttention(GroupQueryAttentionOptions(8, 4, 2)
                                            .input_bias(false)
                                            .output_bias(false)
                                            .scale(0.5)
                                            .causal(true)
                                            .window(3)
                                            .softcap(20.0)
                                            .qk_norm(QkNormOptions().eps(1e-3).after_rotary(true))
                                            .alibi(true)
                                            .sinks(true)
                                            .rotary(RotaryEmbeddingOptions(2)))),
            "heed::GroupQueryAttention(emb_dim=8, head_num=4, group_num=2, dropout=0, "
            "input_bias=false, output_bias=false, scale=0.5, causal=true, window=3, softcap=20, "
            "qk_norm=rms_norm, qk_norm_eps=0.001, qk_norm_after_rotary=true, alibi=true, "
            "sinks=true, rotary=heed::RotaryEmbedding(head_dim=2, base=10000))");
}

TEST(Modules, SetOptionsOfTheirBaseInAnyOrder) {
  // The setters of the base return the derived options.
  const auto options = MultiHeadAttentionOptions(8, 2).causal(true).dropout(0.0).head_nums(4);
  EXPECT_EQ(printed(MultiHeadAttention(options)),
            "heed::MultiHeadAttention(emb_dim=8, head_nums=4, dropout=0, causal=true)");
  EXPECT_EQ(printed(MultiHeadAttention(
                MultiHeadAttentionOptions(8, 2).top_left(true).left_window(3).right_window(0))),
            "heed::MultiHeadAttention(emb_dim=8, head_nums=2, dropout=0.1, top_left=true, "
            "left_window=3, right_window=0)");
}

TEST(Modules, NormalizeQueriesAndKeysBeforeOrAfterRotating) {
  torch::manual_seed(moved(8));
  const at::NoGradGuard no_grad;
  const auto x = uniform({2, 5, 16}, at::kFloat);
  for (const bool after : {false, true}) {
    GroupQueryAttention module(GroupQueryAttentionOptions(16, 4, 2)
                                   .qk_norm(QkNormOptions().after_rotary(after))
                                   .rotary(RotaryEmbeddingOptions(4)));
    const auto turned = [&](const torch::nn::Linear& linear, int64_t heads, Norm& norm) {
      norm->weight.uniform_(0.5, 2.0);  // equal weights would turn alike
      const auto split = split_heads(linear.ptr()->forward(x), heads);
      return after ? norm(module->rotary(split)) : module->rotary(norm(split));
    };
    const auto query = turned(module->fc_q, 4, module->q_norm);
    const auto key = turned(module->fc_k, 2, module->k_norm);
    const auto heads = attend(query, key, split_heads(module->fc_v(x), 2));
    EXPECT_TRUE(is_close(module(x), module->fc_o(merge_heads(heads)), 1e-5)) << after;
  }
}

/// OLMo 2's: one norm over all heads, whose scale then depends on the other heads.
TEST(Modules, NormalizeAllHeadsTogether) {
  torch::manual_seed(moved(9));
  const at::NoGradGuard no_grad;
  const auto x = uniform({2, 5, 16}, at::kFloat);
  GroupQueryAttention module(GroupQueryAttentionOptions(16, 4, 2)
                                 .qk_norm(QkNormOptions().across_heads(true).unit_offset(true))
                                 .causal(true)
                                 .rotary(RotaryEmbeddingOptions(4)));
  EXPECT_EQ(module->q_norm->weight.sizes(), at::IntArrayRef({16}));
  EXPECT_EQ(module->k_norm->weight.sizes(), at::IntArrayRef({8}));
  const auto turned = [&](const torch::nn::Linear& linear, int64_t heads, Norm& norm) {
    norm->weight.uniform_(-0.5, 1.0);
    const auto packed = linear64(linear, x);
    const auto rms = (packed.square().mean(-1, /*keepdim=*/true) + norm->options.eps()).sqrt();
    const auto normed = packed / rms * (1.0 + norm->weight.to(at::kDouble));
    return module->rotary(split_heads(normed, heads)).to(at::kFloat);
  };
  const auto query = turned(module->fc_q, 4, module->q_norm);
  const auto key = turned(module->fc_k, 2, module->k_norm);
  const auto value = split_heads(module->fc_v(x), 2);
  const auto heads = attend(query, key, value, AttendOptions().causal(true));
  const auto expected = module->fc_o(merge_heads(heads));
  EXPECT_TRUE(is_close(module(x), expected, 1e-5));
  auto cache = module->make_cache(2, 5);
  EXPECT_TRUE(is_close(module->forward_cached(x, cache), expected, 1e-5));
  EXPECT_EQ(printed(module),
            "heed::GroupQueryAttention(emb_dim=16, head_num=4, group_num=2, dropout=0, "
            "causal=true, qk_norm=rms_norm, qk_norm_across_heads=true, qk_norm_unit_offset=true, "
            "rotary=heed::RotaryEmbedding(head_dim=4, base=10000))");
}

TEST(Modules, KeepAlibisSlopesInABuffer) {
  MultiHeadAttention module(MultiHeadAttentionOptions(8, 16).head_dim(4).alibi(true));
  ASSERT_EQ(module->named_buffers().keys(), std::vector<std::string>({"alibi_slopes"}));
  // Rounded to bfloat16 they would be others: 2^(-1/2) is none.
  const auto slopes = alibi_slopes(16);
  const auto keeps = [&](const at::Tensor& held) {
    return held.scalar_type() == at::kFloat && held.equal(slopes);
  };
  EXPECT_TRUE(keeps(module->alibi_slopes));
  module->to(at::kBFloat16);
  EXPECT_TRUE(keeps(module->alibi_slopes));
  module->to(at::kCPU, at::kDouble);
  EXPECT_TRUE(keeps(module->alibi_slopes));
  const auto clone = std::dynamic_pointer_cast<MultiHeadAttentionImpl>(module->clone());
  EXPECT_TRUE(keeps(clone->alibi_slopes));
  // A parent moves its children.
  torch::nn::Sequential parent(module);
  parent->to(at::kHalf);
  EXPECT_TRUE(keeps(module->alibi_slopes));
}

}  // namespace
}  // namespace heed::test
