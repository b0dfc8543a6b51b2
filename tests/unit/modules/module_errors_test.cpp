// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attention.h>
#include <heed/differential_attention.h>
#include <heed/group_query_attention.h>
#include <heed/latent_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/residual_attention.h>
#include <heed/scaled_dot_product_attention.h>
#include <heed/self_attention.h>

#include <cmath>
#include <limits>
#include <string>

#include "support/expect.h"

namespace heed::test {
namespace {

TEST(ModuleErrors, NameTheOptionThatIsWrong) {
  EXPECT_ERROR("Attention: emb_dim (0) must be at least 1", Attention module(0));
  EXPECT_ERROR("AttentionV1: emb_dim (-3) must be at least 1", AttentionV1 module(-3));
  EXPECT_ERROR("Attention: dropout (1) must be in [0, 1)", Attention module(8, 1.0));
  EXPECT_ERROR("AttentionV1: dropout (-0.5) must be in [0, 1)", AttentionV1 module(8, -0.5));
  EXPECT_ERROR("MultiHeadAttention: dropout (nan) must be in [0, 1)",
               MultiHeadAttention module(8, 2, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_ERROR("MultiHeadAttention: emb_dim (10) must be a multiple of head_nums (3)",
               MultiHeadAttention module(10, 3));
  EXPECT_ERROR("MultiHeadAttention: head_nums (0) must be at least 1",
               MultiHeadAttention module(10, 0));
  EXPECT_ERROR("GroupQueryAttention: emb_dim (8) must be a multiple of head_num (3)",
               GroupQueryAttention module(8, 3, 1));
  EXPECT_ERROR("GroupQueryAttention: head_num (4) must be a multiple of group_num (3)",
               GroupQueryAttention module(8, 4, 3));
  EXPECT_ERROR("GroupQueryAttention: group_num (0) must be at least 1",
               GroupQueryAttention module(8, 4, 0));
  EXPECT_ERROR("GroupQueryAttention: dropout (2) must be in [0, 1)",
               GroupQueryAttention module(GroupQueryAttentionOptions(8, 4, 2).dropout(2)));
}

TEST(ModuleErrors, NameTheInputThatIsWrong) {
  Attention attention(8);
  EXPECT_ERROR("Attention: x must be defined", attention(at::Tensor()));
  EXPECT_ERROR("Attention: x rank (2) must equal 3; x [5, 8]", attention(at::zeros({5, 8})));
  EXPECT_ERROR("Attention: x dim 2 (7) must equal emb_dim (8); x [2, 5, 7]",
               attention(at::zeros({2, 5, 7})));
  EXPECT_ERROR("Attention: x dtype (Long) must be Float, Double, BFloat16 or Half",
               attention(at::zeros({2, 5, 8}, at::kLong)));
  AttentionV1 packed(8);
  EXPECT_ERROR("AttentionV1: x dtype (Double) must equal weight dtype (Float)",
               packed(at::zeros({2, 5, 8}, at::kDouble)));
  EXPECT_ERROR("AttentionV1: x dim 2 (9) must equal emb_dim (8); x [2, 5, 9]",
               packed->forward_with_weights(at::zeros({2, 5, 9})));
  MultiHeadAttention multi_head(8, 2);
  EXPECT_ERROR("MultiHeadAttention: x device (meta) must equal weight device (cpu)",
               multi_head(at::zeros({2, 5, 8}, at::kMeta)));
}

TEST(ModuleErrors, NameTheSourceThatIsWrong) {
  const auto query = at::zeros({2, 3, 8});
  const auto key = at::zeros({2, 5, 8});
  MultiHeadAttention multi_head(8, 2);
  EXPECT_ERROR("MultiHeadAttention: key dim 2 (6) must equal emb_dim (8); key [2, 5, 6]",
               multi_head(query, at::zeros({2, 5, 6}), key));
  EXPECT_ERROR(
      "MultiHeadAttention: key dim 0 (1) must equal query dim 0 (2); query [2, 3, 8], key [1, 5, "
      "8]",
      multi_head(query, at::zeros({1, 5, 8}), key));
  GroupQueryAttention grouped(8, 4, 2);
  EXPECT_ERROR(
      "GroupQueryAttention: value dim 1 (4) must equal key dim 1 (5); key [2, 5, 8], value [2, 4, "
      "8]",
      grouped(query, key, at::zeros({2, 4, 8})));
  EXPECT_ERROR("GroupQueryAttention: value must be defined", grouped(query, key, at::Tensor()));
}

TEST(ModuleErrors, NameTheSizeThatIsWrong) {
  const auto error = [](const MultiHeadAttentionOptions& options) {
    return value_error([&] { MultiHeadAttention module(options); });
  };
  const MultiHeadAttentionOptions options(8, 2);
  EXPECT_EQ(error(MultiHeadAttentionOptions(options).key_emb_dim(0)),
            "MultiHeadAttention: key_emb_dim (0) must be at least 1");
  EXPECT_EQ(error(MultiHeadAttentionOptions(options).value_emb_dim(-1)),
            "MultiHeadAttention: value_emb_dim (-1) must be at least 1");
  EXPECT_EQ(error(MultiHeadAttentionOptions(options).head_dim(0)),
            "MultiHeadAttention: head_dim (0) must be at least 1");
  EXPECT_EQ(error(MultiHeadAttentionOptions(options).value_head_dim(0)),
            "MultiHeadAttention: value_head_dim (0) must be at least 1");
  EXPECT_EQ(error(MultiHeadAttentionOptions(options).window(0)),
            "MultiHeadAttention: window (0) must be at least 1");
  EXPECT_EQ(error(MultiHeadAttentionOptions(options).scale(INFINITY)),
            "MultiHeadAttention: scale (inf) must be finite and not 0");
  MultiHeadAttention module(MultiHeadAttentionOptions(8, 2).key_emb_dim(6));
  const auto x = at::zeros({2, 5, 8});
  EXPECT_ERROR("MultiHeadAttention: x dim 2 (8) must equal key_emb_dim (6); x [2, 5, 8]",
               module(x, x, x));
}

TEST(ModuleErrors, NameTheNestedTensorThatIsWrong) {
  MultiHeadAttention module(8, 2);
  const auto x = at::zeros({2, 5, 8});
  const auto nested = at::_nested_tensor_from_tensor_list({at::zeros({3, 8}), at::zeros({5, 8})});
  EXPECT_ERROR("MultiHeadAttention: key must be nested, as query is", module(nested, x, x));
  EXPECT_ERROR("MultiHeadAttention: key must not be nested", module(x, nested, x));
  EXPECT_ERROR(
      "MultiHeadAttention: query must not be nested where weights are asked for: their shapes "
      "would differ",
      module->forward_with_weights(nested));
  EXPECT_ERROR("attend_varlen: mask must be absent: the offsets say what a query may see",
               module(nested, at::ones({5, 5}, at::kBool)));
  EXPECT_ERROR("Attention: x must not be nested", Attention(8)(nested));
  EXPECT_ERROR("MultiHeadAttention: x dim 2 (6) must equal emb_dim (8); x [1, 8, 6]",
               module(at::_nested_tensor_from_tensor_list({at::zeros({3, 6}), at::zeros({5, 6})})));
  const auto lengths = [](int64_t first, int64_t second) {
    return at::_nested_tensor_from_tensor_list({at::zeros({first, 8}), at::zeros({second, 8})});
  };
  EXPECT_ERROR(
      "MultiHeadAttention: nested value lengths ([3, 2]) must equal nested key lengths ([2, 3])",
      module(nested, lengths(2, 3), lengths(3, 2)));
}

TEST(ModuleErrors, NameTheMaskThatIsWrong) {
  const auto x = at::zeros({2, 5, 8});
  // These take no bias.
  const auto without_bias = [&](const std::string& name, const auto& call) {
    EXPECT_EQ(value_error(call),
              name +
                  ": mask dtype (Float) must be Bool or an integer; it holds other numbers than a "
                  "mask");
  };
  const auto scores = at::full({5, 5}, 0.5);
  without_bias("Attention", [&] { Attention(8)(x, scores); });
  without_bias("SelfAttention", [&] { SelfAttention(8, 2)->forward(x, x, x, scores); });
  without_bias("ResidualAttention",
               [&] { ResidualAttention(MultiHeadAttentionOptions(8, 2))(x, scores); });
  without_bias("AttentionV1", [&] { AttentionV1(8)->forward_with_weights(x, scores); });
  without_bias("DifferentialAttention",
               [&] { DifferentialAttention(DifferentialAttentionOptions(8, 2))(x, scores); });
  without_bias("ScaledDotProductAttention", [&] {
    const auto heads = x.unsqueeze(1);
    ScaledDotProductAttention(1.0)->forward(heads, heads, heads, scores);
  });
  MultiHeadAttention multi_head(8, 2);
  EXPECT_ERROR(
      "MultiHeadAttention: mask dtype (Float) must be Bool or an integer; it holds 0 alone: if 0 "
      "shows, pass mask_from_additive(mask) or pass it as bias; if 0 hides, pass mask != 0",
      multi_head(x, at::zeros({5, 5})));
  EXPECT_ERROR(
      "MultiHeadAttention: mask dim 1 (4) must equal S (5); mask [5, 4], query [2, 5, 8], key [2, "
      "5, 8]",
      multi_head(x, at::ones({5, 4}, at::kBool)));
  EXPECT_ERROR(
      "MultiHeadAttention: mask dim 0 (3) must equal B (2) or 1; mask [3, 5, 5], query [2, 5, 8], "
      "key [2, 5, 8]",
      multi_head(x, at::ones({3, 5, 5}, at::kBool)));
  EXPECT_ERROR(
      "MultiHeadAttention: mask dim 0 (2) must equal L (5); mask [2, 5], query [2, 5, 8], key [2, "
      "5, 8]; if it is [B, S], pass key_padding_mask(mask) or, where nonzero hides, "
      "key_padding_mask(from_hidden(mask))",
      multi_head(x, at::ones({2, 5}, at::kBool)));
  GroupQueryAttention grouped(8, 4, 2);
  EXPECT_ERROR(
      "GroupQueryAttention: mask [2, 7, 8] must not be a memory: cross-attention takes query, key "
      "and value",
      grouped(x, at::zeros({2, 7, 8})));
}

TEST(ModuleErrors, NameTheBiasThatIsWrong) {
  const auto x = at::zeros({2, 5, 8});
  GroupQueryAttention module(8, 4, 2);
  const auto error = [&](const at::Tensor& bias) {
    const auto message = value_error([&] { module(x, x, x, std::nullopt, bias); });
    EXPECT_ERROR(message, module->forward_with_weights(x, x, x, std::nullopt, bias));
    return message;
  };
  EXPECT_EQ(error(at::zeros({1, 3, 5, 5})),
            "GroupQueryAttention: bias dim 1 (3) must equal H (4) or 1; bias [1, 3, 5, 5], "
            "query [2, 5, 8], key [2, 5, 8]");
  EXPECT_EQ(error(at::ones({5, 5}, at::kBool)),
            "GroupQueryAttention: bias dtype (Bool) must be Float, Double, BFloat16 or Half; pass "
            "it as mask if true shows, or from_hidden(bias) as mask if true hides");
}

TEST(ModuleErrors, FunctionalFormNamesWhatDoesNotSplit) {
  const auto packed = at::zeros({2, 5, 8});
  EXPECT_ERROR(
      "multi_head_attention: query dim 2 (8) must be a positive multiple of num_heads (3); query "
      "[2, 5, 8]",
      multi_head_attention(packed, packed, packed, 3));
  EXPECT_ERROR(
      "multi_head_attention: key dim 2 (6) must be a positive multiple of head dim (4); key [2, 5, "
      "6]",
      multi_head_attention(packed, at::zeros({2, 5, 6}), packed, 2));
  EXPECT_ERROR("multi_head_attention: num_heads (0) must be at least 1",
               multi_head_attention(packed, packed, packed, 0));
}

}  // namespace
}  // namespace heed::test
