// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/self_attention.h>

#include <cmath>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

namespace heed::test::of_self_attention {
namespace {

/// As in modules_test.cpp: up to five products of sums of up to 12 terms, each below 2 in size.
const double kTolerance = 64 * unit_roundoff(at::kFloat);

at::Tensor shared_projection(const torch::nn::Linear& linear, const at::Tensor& x, int64_t heads) {
  return linear64(linear, split_heads(x, heads));
}

TEST(SelfAttention, SharesProjectionsAndDividesBySqrtOfE) {
  torch::manual_seed(moved(2));
  const at::NoGradGuard no_grad;
  SelfAttention module(12, 3);
  const auto query = uniform({2, 4, 12}, at::kFloat);
  const auto key = uniform({2, 6, 12}, at::kFloat);
  const auto value = uniform({2, 6, 12}, at::kFloat);
  const auto mask = at::rand({2, 1, 1, 6}).gt(0.4).to(at::kInt);
  const auto [output, weights] = module(value, key, query, mask);
  const auto wanted = reference(
      {shared_projection(module->queries, query, 3), shared_projection(module->keys, key, 3),
       shared_projection(module->values, value, 3)},
      AttendOptions().mask(mask).scale(1 / std::sqrt(12.0)));
  EXPECT_TRUE(is_close(output, linear64(module->fc_out, merge_heads(wanted.output)), kTolerance));
  EXPECT_TRUE(is_close(weights, wanted.weights, kTolerance));
  EXPECT_EQ(module->named_parameters().keys(),
            std::vector<std::string>({"values.weight", "keys.weight", "queries.weight",
                                      "fc_out.weight", "fc_out.bias"}));
  EXPECT_EQ(printed(module), "heed::SelfAttention(embed_size=12, heads=3)");
}

TEST(SelfAttention, NamesWhatIsWrong) {
  EXPECT_ERROR("SelfAttention: embed_size (10) must be a multiple of heads (3)",
               SelfAttention module(10, 3));
  SelfAttention module(8, 2);
  const auto x = uniform({2, 5, 8}, at::kFloat);
  EXPECT_ERROR("SelfAttention: query dim 2 (6) must equal embed_size (8); query [2, 5, 6]",
               module(x, x, uniform({2, 5, 6}, at::kFloat)));
  EXPECT_ERROR("SelfAttention: key dim 2 (6) must equal embed_size (8); key [2, 5, 6]",
               module(x, uniform({2, 5, 6}, at::kFloat), x));
  EXPECT_ERROR(
      "SelfAttention: value dim 1 (5) must equal key dim 1 (4); key [2, 4, 8], value [2, 5, 8]",
      module(x, uniform({2, 4, 8}, at::kFloat), x));
}

}  // namespace
}  // namespace heed::test::of_self_attention
