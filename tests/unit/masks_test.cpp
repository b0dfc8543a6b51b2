#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/masks.h>

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

TEST(Masks, RefuseWhatHasNoMeaning) {
  EXPECT_EQ(value_error([] { causal_mask(-1, 3); }),
            "causal_mask: query_length (-1) must be at least 0");
  EXPECT_EQ(value_error([] { window_mask(3, -2, 1); }),
            "window_mask: key_length (-2) must be at least 0");
  EXPECT_EQ(value_error([] { window_mask(3, 3, 0); }),
            "window_mask: window (0) must be at least 1");
  EXPECT_EQ(value_error([] { padding_mask({}, 3); }), "padding_mask: lengths must be defined");
  EXPECT_EQ(value_error([] {
              padding_mask(at::tensor({1, 2}).unsqueeze(0), 3);
            }),
            "padding_mask: lengths rank (2) must equal 1; lengths [1, 2]");
  EXPECT_EQ(value_error([] { padding_mask(at::tensor({1.5}), 3); }),
            "padding_mask: lengths dtype (Double) must be an integer");
  EXPECT_EQ(value_error([] { padding_mask(at::tensor({1}), -3); }),
            "padding_mask: key_length (-3) must be at least 0");
}

}  // namespace
}  // namespace heed::test
