// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/masks.h>

#include <cmath>
#include <limits>
#include <string>

#include "support/expect.h"

namespace heed::test {
namespace {

/// Rows of '1' and '0', separated by '/'.
std::string drawn(const at::Tensor& mask) {
  std::string text;
  for (int64_t i = 0; i < mask.size(0); ++i) {
    if (i > 0) text += '/';
    for (int64_t j = 0; j < mask.size(1); ++j) text += mask[i][j].item<bool>() ? '1' : '0';
  }
  return text;
}

TEST(Masks, CausalIsAlignedBottomRight) {
  EXPECT_EQ(drawn(causal_mask(3, 3)), "100/110/111");
  EXPECT_EQ(drawn(causal_mask(2, 4)), "1110/1111");
  EXPECT_EQ(drawn(causal_mask(4, 2)), "00/00/10/11");
  EXPECT_EQ(causal_mask(0, 3).sizes(), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(causal_mask(2, 2).scalar_type(), at::kBool);
}

TEST(Masks, CausalCountsFromAnOffset) {
  EXPECT_EQ(drawn(causal_mask(2, 4, int64_t{0})), "1000/1100");
  EXPECT_EQ(drawn(causal_mask(2, 4, 1)), "1100/1110");
  EXPECT_EQ(drawn(causal_mask(2, 3, -1)), "000/100");
}

TEST(Masks, WindowCountsTheQueryItself) {
  EXPECT_EQ(drawn(window_mask(4, 4, 1)), "1000/0100/0010/0001");
  EXPECT_EQ(drawn(window_mask(4, 4, 2)), "1000/1100/0110/0011");
  EXPECT_EQ(drawn(window_mask(4, 4, 2, /*causal=*/false)), "1100/1110/0111/0011");
  EXPECT_EQ(drawn(window_mask(2, 4, 2)), "0110/0011");
  EXPECT_EQ(drawn(window_mask(3, 3, 9)), drawn(causal_mask(3, 3)));
}

TEST(Masks, PaddingHidesWhatLiesBeyondALength) {
  const auto mask = padding_mask(at::tensor({2, 0, 3}), 3);
  EXPECT_EQ(mask.sizes(), (std::vector<int64_t>{3, 1, 1, 3}));
  EXPECT_EQ(drawn(mask.view({3, 3})), "110/000/111");
}

TEST(Masks, KeyPaddingShowsNonzeroKeys) {
  const auto mask = key_padding_mask(at::tensor({1, 0, 7, 0, 0, 0}).view({2, 3}));
  EXPECT_EQ(mask.sizes(), (std::vector<int64_t>{2, 1, 1, 3}));
  EXPECT_EQ(drawn(mask.view({2, 3})), "101/000");
}

TEST(Masks, DocumentsSeeThemselvesAlone) {
  const auto ids = at::tensor({4, 4, 9, 4});
  EXPECT_EQ(drawn(document_mask(ids)), "1101/1101/0010/1101");
  const auto batched = document_mask(ids.view({2, 2}));
  EXPECT_EQ(batched.sizes(), (std::vector<int64_t>{2, 1, 2, 2}));
  EXPECT_EQ(drawn(batched[0][0]), "11/11");
  EXPECT_EQ(drawn(batched[1][0]), "10/01");
}

TEST(Masks, CausalTakesAnyOffset) {
  constexpr auto kLargest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(drawn(causal_mask(2, 3, kLargest)), "111/111");
  EXPECT_EQ(drawn(causal_mask(2, 3, -kLargest - 1)), "000/000");
}

TEST(Masks, HiddenOnesTurnAround) {
  const auto hidden = at::tensor({0, 1, 0, 0}).view({2, 2});
  EXPECT_EQ(drawn(from_hidden(hidden)), "10/11");
  EXPECT_EQ(drawn(from_hidden(hidden.to(at::kBool))), "10/11");
  EXPECT_EQ(drawn(from_hidden(hidden.to(at::kFloat))), "10/11");
}

TEST(Masks, CombineToTheirIntersection) {
  const auto causal = causal_mask(3, 3);
  EXPECT_EQ(drawn(combine_masks({causal, window_mask(3, 3, 2, /*causal=*/false).to(at::kInt)})),
            "100/110/011");
  const auto padded = combine_masks({causal, padding_mask(at::tensor({3, 1}), 3)});
  EXPECT_EQ(padded.sizes(), (std::vector<int64_t>{2, 1, 3, 3}));
  EXPECT_EQ(drawn(padded[1][0]), "100/100/100");
  const auto ranked = combine_masks({at::ones({2, 3, 3}, at::kLong), causal});
  EXPECT_EQ(ranked.sizes(), (std::vector<int64_t>{2, 1, 3, 3}));
  EXPECT_EQ(drawn(combine_masks({causal})), drawn(causal));
}

TEST(Masks, RefuseWhatHasNoMeaning) {
  EXPECT_ERROR("causal_mask: query_length (-1) must be at least 0", causal_mask(-1, 3));
  EXPECT_ERROR("window_mask: key_length (-2) must be at least 0", window_mask(3, -2, 1));
  EXPECT_ERROR("window_mask: window (0) must be at least 1", window_mask(3, 3, 0));
  EXPECT_ERROR("padding_mask: lengths must be defined", padding_mask({}, 3));
  EXPECT_ERROR("padding_mask: lengths rank (2) must equal 1; lengths [1, 2]",
               padding_mask(at::tensor({1, 2}).unsqueeze(0), 3));
  EXPECT_ERROR("padding_mask: lengths dtype (Double) must be an integer",
               padding_mask(at::tensor({1.5}), 3));
  EXPECT_ERROR("padding_mask: lengths (3 to 11) must be at least 0 and at most key_length (10)",
               padding_mask(at::tensor({3, 11}), 10));
  EXPECT_ERROR("padding_mask: lengths (-1 to 10) must be at least 0 and at most key_length (10)",
               padding_mask(at::tensor({-1, 10}), 10));
  EXPECT_ERROR("padding_mask: key_length (-3) must be at least 0",
               padding_mask(at::tensor({1}), -3));
  EXPECT_ERROR("key_padding_mask: keys rank (1) must equal 2; keys [2]",
               key_padding_mask(at::tensor({1, 0})));
  EXPECT_ERROR(
      "key_padding_mask: keys dtype (Double) must be Bool or an integer; it holds 0 and 1: pass "
      "keys != 0, or from_hidden(keys) if 1 hides",
      key_padding_mask(at::tensor({1.0, 0.0})));
  EXPECT_ERROR("document_mask: ids dtype (Double) must be an integer",
               document_mask(at::tensor({1.0, 0.0})));
  EXPECT_ERROR("document_mask: ids rank (0) must be 1 or 2; ids []",
               document_mask(at::ones({}, at::kLong)));
  EXPECT_ERROR(
      "from_hidden: floating hidden must hold 0 and 1 only; it holds 0 and -inf or the least "
      "number: pass mask_from_additive(hidden) or pass it as bias",
      from_hidden(at::tensor({0.0, -INFINITY})));
  EXPECT_ERROR("from_hidden: hidden layout (Sparse) must be Strided",
               from_hidden(causal_mask(2, 2).to_sparse()));
  EXPECT_ERROR("key_padding_mask: keys layout (Sparse) must be Strided",
               key_padding_mask(causal_mask(2, 2).to_sparse()));
  EXPECT_ERROR("combine_masks: masks must hold at least 1 mask", combine_masks({}));
  EXPECT_ERROR("combine_masks: masks[1] must be defined",
               combine_masks({causal_mask(2, 2), at::Tensor()}));
  EXPECT_ERROR("combine_masks: masks[0] rank (1) must be 2 [L, S], 3 [B, L, S] or 4 [B, H, L, S]",
               combine_masks({at::tensor({1, 2})}));
  EXPECT_ERROR("combine_masks: masks[1] [3, 3] must broadcast with those before it [2, 2]",
               combine_masks({causal_mask(2, 2), causal_mask(3, 3)}));
}

}  // namespace
}  // namespace heed::test
