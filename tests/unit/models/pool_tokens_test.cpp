// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/masks.h>
#include <heed/pool_tokens.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

namespace heed::test::of_pool_tokens {
namespace {

constexpr int64_t B = 4, E = 6, L = 5;
constexpr Pooling kPoolings[] = {Pooling::first, Pooling::last, Pooling::mean};

/// The tokens that count: all, padding at the end, padding at the beginning, none.
const std::vector<std::vector<int64_t>> kCounted = {{0, 1, 2, 3, 4}, {0, 1, 2}, {2, 3, 4}, {}};

at::Tensor mask_of_counted() {
  auto mask = at::zeros({B, L}, at::kBool);
  for (int64_t b = 0; b < B; ++b) {
    for (const auto token : kCounted[static_cast<size_t>(b)]) mask[b][token] = true;
  }
  return mask;
}

/// In float64, row by row.
at::Tensor pooled64(const at::Tensor& x, Pooling pooling) {
  std::vector<at::Tensor> rows;
  for (int64_t b = 0; b < B; ++b) {
    const auto& tokens = kCounted[static_cast<size_t>(b)];
    auto row = at::zeros({E}, at::kDouble);
    const auto states = x[b].to(at::kDouble);
    if (!tokens.empty() && pooling == Pooling::first) row = states[tokens.front()];
    if (!tokens.empty() && pooling == Pooling::last) row = states[tokens.back()];
    if (!tokens.empty() && pooling == Pooling::mean) {
      for (const auto token : tokens) row = row + states[token];
      row = row / static_cast<double>(tokens.size());
    }
    rows.push_back(row);
  }
  return at::stack(rows);
}

TEST(PoolTokens, IsTheReference) {
  torch::manual_seed(moved(91));
  const auto mask = mask_of_counted();
  for (const auto device : devices()) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto x = uniform({B, L, E}, dtype).to(device);
      for (const auto pooling : kPoolings) {
        SCOPED_TRACE(std::string(to_string(pooling)) + " " + c10::toString(dtype));
        const auto expected = pooled64(x.cpu(), pooling);
        const auto own = mask.to(device);
        for (const auto& form : {own, own.to(at::kLong), key_padding_mask(own)}) {
          const auto actual = pool_tokens(x, pooling, form);
          EXPECT_EQ(actual.scalar_type(), dtype);
          EXPECT_EQ(actual.sizes(), at::IntArrayRef({B, E}));
          // A mean is rounded once, and in float32 each of its five sums.
          EXPECT_TRUE(is_close(actual.cpu().to(at::kDouble), expected, 8 * unit_roundoff(dtype)));
        }
      }
    }
  }
}

TEST(PoolTokens, CountsAllTokensByDefault) {
  torch::manual_seed(moved(92));
  const auto x = uniform({B, L, E}, at::kFloat);
  EXPECT_TRUE(pool_tokens(x, Pooling::first).equal(x.select(1, 0)));
  EXPECT_TRUE(pool_tokens(x, Pooling::last).equal(x.select(1, L - 1)));
  for (const auto pooling : kPoolings) {
    const auto all = at::ones({1, L}, at::kBool);  // for each sequence
    EXPECT_TRUE(is_close(pool_tokens(x, pooling), pool_tokens(x, pooling, all), 1e-6));
  }
}

TEST(PoolTokens, IgnoresWhatDoesNotCount) {
  torch::manual_seed(moved(93));
  const auto mask = mask_of_counted();
  const auto x = uniform({B, L, E}, at::kFloat);
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const auto poisoned = x.masked_fill(mask.logical_not().unsqueeze(2), nan);
  for (const auto pooling : kPoolings) {
    EXPECT_TRUE(pool_tokens(poisoned, pooling, mask).equal(pool_tokens(x, pooling, mask)));
  }
}

TEST(PoolTokens, HasTheReferencesGradients) {
  torch::manual_seed(moved(94));
  const auto mask = mask_of_counted();
  const auto x = uniform({B, L, E}, at::kDouble), factors = uniform({B, E}, at::kDouble);
  for (const auto pooling : kPoolings) {
    const auto gradient = [&](const auto& pool) {
      const auto leaf = x.clone().requires_grad_();
      return torch::autograd::grad({(pool(leaf) * factors).sum()}, {leaf})[0];
    };
    EXPECT_TRUE(
        is_close(gradient([&](const at::Tensor& y) { return pool_tokens(y, pooling, mask); }),
                 gradient([&](const at::Tensor& y) { return pooled64(y, pooling); }), 1e-14));
  }
}

TEST(PoolTokens, TakesEmptySequences) {
  for (const auto pooling : kPoolings) {
    const auto none = at::empty({B, 0, E}), mask = at::empty({B, 0}, at::kBool);
    EXPECT_TRUE(pool_tokens(none, pooling).equal(at::zeros({B, E})));
    EXPECT_TRUE(pool_tokens(none, pooling, mask).equal(at::zeros({B, E})));
    const auto no_batch = at::empty({0, L, E});
    EXPECT_EQ(pool_tokens(no_batch, pooling).sizes(), at::IntArrayRef({0, E}));
  }
}

TEST(PoolTokens, RefusesWhatDoesNotFit) {
  const auto x = at::ones({B, L, E});
  const auto error = [&](const at::Tensor& states, const at::Tensor& mask) {
    return value_error([&] { pool_tokens(states, Pooling::mean, mask); });
  };
  const std::string rule = " must be [B or 1, L] or [B or 1, 1, 1, L]; x [4, 5, 6]";
  EXPECT_EQ(error(x, at::ones({B, 4}, at::kBool)), "pool_tokens: mask [4, 4]" + rule);
  EXPECT_EQ(error(x, at::ones({3, L}, at::kBool)), "pool_tokens: mask [3, 5]" + rule);
  EXPECT_EQ(error(x, at::ones({L}, at::kBool)), "pool_tokens: mask [5]" + rule);
  EXPECT_EQ(error(x, at::ones({B, 1, L, L}, at::kBool)), "pool_tokens: mask [4, 1, 5, 5]" + rule);
  EXPECT_NE(error(x, at::ones({B, L})).find("pool_tokens: mask"), std::string::npos);
  EXPECT_EQ(value_error([&] {
              pool_tokens(at::ones({B, L}), Pooling::mean);
            }),
            "pool_tokens: x rank (2) must equal 3; x [4, 5]");
  EXPECT_NE(value_error([&] {
              pool_tokens(x.to(at::kLong), Pooling::mean);
            }).find("pool_tokens: x dtype (Long)"),
            std::string::npos);
  EXPECT_EQ(to_string(Pooling::first), "first");
  EXPECT_EQ(to_string(Pooling::last), "last");
  EXPECT_EQ(to_string(Pooling::mean), "mean");
}

}  // namespace
}  // namespace heed::test::of_pool_tokens
