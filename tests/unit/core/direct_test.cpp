// SPDX-License-Identifier: BSD-3-Clause
#include "core/direct.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_make_dual.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/forward_grad.h>

#include "support/inputs.h"

namespace heed::detail {
namespace {

using test::uniform;

TEST(DirectViews, AreThoseOfAsStrided) {
  const at::NoGradGuard no_grad;
  const auto tensor = uniform({2, 3, 8}, at::kFloat).narrow(1, 1, 2);
  const std::vector<int64_t> sizes = {2, 4, 2, 2}, strides = {24, 2, 8, 1};
  ASSERT_TRUE(takes_direct_views(tensor));
  const auto view = strided_view(tensor, sizes, strides);
  const auto expected = tensor.as_strided(sizes, strides);
  EXPECT_TRUE(view.equal(expected));
  EXPECT_EQ(view.strides(), expected.strides());
  EXPECT_TRUE(view.is_alias_of(tensor));
  EXPECT_FALSE(view.requires_grad());
}

/// So autograd notices a change of either after it has saved the other.
TEST(DirectViews, CountChangesTogether) {
  const auto tensor = uniform({2, 8}, at::kFloat);
  const auto view = strided_view(tensor, {4, 4}, {4, 1});
  tensor.add_(1);
  EXPECT_EQ(view._version(), tensor._version());
  view.zero_();
  EXPECT_EQ(tensor._version(), 2);
  const c10::InferenceMode inference;
  const auto own = uniform({2, 8}, at::kFloat);
  EXPECT_TRUE(strided_view(own, {4, 4}, {4, 1}).is_inference());
}

TEST(DirectViews, LeaveWhatAutogradAndTransformsFollow) {
  const auto weight = uniform({2, 8}, at::kFloat).requires_grad_();
  EXPECT_FALSE(takes_direct_views(weight));
  EXPECT_TRUE(strided_view(weight, {4, 4}, {4, 1}).requires_grad());
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(takes_direct_views(weight));
  }
  EXPECT_FALSE(takes_direct_views(at::zeros({2}, at::kComplexFloat).conj()));
  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  const auto dual = at::_make_dual(uniform({2, 8}, at::kFloat), uniform({2, 8}, at::kFloat),
                                   static_cast<int64_t>(level));
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(takes_direct_views(dual));
  torch::autograd::ForwardADLevel::release_idx(level);
}

TEST(DirectMemory, HasTheStridesOfEmptyLike) {
  const auto tensor = uniform({2, 3, 4, 8}, at::kFloat);
  for (const auto& like : {tensor, tensor.transpose(1, 2), tensor.narrow(1, 0, 2),
                           tensor.narrow(0, 0, 1).expand({5, 3, 4, 8})}) {
    const auto made = empty_as(like);
    const auto expected = at::empty_like(like);
    EXPECT_EQ(made.sizes(), expected.sizes());
    EXPECT_EQ(made.strides(), expected.strides());
    EXPECT_EQ(made.scalar_type(), at::kFloat);
  }
  const auto heads = empty_heads(2, 3, 4, 8, at::kDouble);
  EXPECT_EQ(heads.sizes(), at::IntArrayRef({2, 3, 4, 8}));
  EXPECT_TRUE(heads.transpose(1, 2).is_contiguous());
}

}  // namespace
}  // namespace heed::detail
