// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/attend_paged.h>
#include <heed/paged_kv_cache.h>
#include <torch/utils.h>

#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

namespace heed::test::of_paged_kv_cache_errors {
namespace {

using Numbers = std::vector<int64_t>;

constexpr int64_t G = 2, H = 4, D = 3, Dv = 2;

PagedKVCacheOptions options(int64_t pages) {
  return PagedKVCacheOptions(pages, G, D).value_head_dim(Dv).page_size(16);
}

class PagedKVCacheErrors : public ::testing::Test {
 protected:
  PagedKVCache cache{options(4)};
  int64_t first = cache.add(), second = cache.add();
};

TEST_F(PagedKVCacheErrors, NameTheOption) {
  const auto error = [](const PagedKVCacheOptions& wrong) {
    return value_error([&] { PagedKVCache{wrong}; });
  };
  EXPECT_EQ(error(options(0)), "PagedKVCache: pages (0) must be at least 1");
  EXPECT_EQ(error(options(1).groups(0)), "PagedKVCache: groups (0) must be at least 1");
  EXPECT_EQ(error(options(1).head_dim(-1)), "PagedKVCache: head_dim (-1) must be at least 1");
  EXPECT_EQ(error(options(1).value_head_dim(-1)),
            "PagedKVCache: value_head_dim (-1) must be at least 0");
  EXPECT_EQ(error(options(1).layers(0)), "PagedKVCache: layers (0) must be at least 1");
  EXPECT_EQ(error(options(1).page_size(8)), "PagedKVCache: page_size (8) must be a multiple of 16");
  EXPECT_EQ(error(options(1).window(0)), "PagedKVCache: window (0) must be at least 1");
  EXPECT_EQ(error(options(1).dtype(at::kLong)),
            "PagedKVCache: dtype (Long) must be Float, Double, BFloat16 or Half, or Char for int8");
  EXPECT_EQ(
      error(options(1).dtype(at::kFloat8_e5m2)),
      "PagedKVCache: dtype (Float8_e5m2) must be Float, Double, BFloat16 or Half, or Char for "
      "int8");
}

TEST_F(PagedKVCacheErrors, LeaveTheCacheAsItWas) {
  const auto error = [&](const Numbers& sequences, const Numbers& counts) {
    return value_error([&] { cache.append(sequences, counts); });
  };
  EXPECT_EQ(error({first, second}, {60, 20}),
            "PagedKVCache::append: free pages (4) must be at least 6 for these tokens: remove or "
            "truncate sequences, or append to fewer");
  EXPECT_EQ(error({first, first}, {1, 1}), "PagedKVCache::append: sequence (0) must be named once");
  EXPECT_EQ(error({first, 7}, {1, 1}),
            "PagedKVCache::append: sequence (7) must be one that add or fork returned, and not "
            "removed");
  EXPECT_EQ(error({first}, {-1}), "PagedKVCache::append: counts[0] (-1) must be at least 0");
  EXPECT_EQ(error({first}, {1, 2}),
            "PagedKVCache::append: counts size (2) must equal sequences size (1)");
  EXPECT_EQ(cache.pages_free(), 4);
  EXPECT_EQ(cache.length(first), 0);
  cache.remove(second);
  EXPECT_ERROR(
      "PagedKVCache::fork: sequence (1) must be one that add or fork returned, and not removed",
      cache.fork(second));
  EXPECT_ERROR("PagedKVCache::truncate: length (-1) must be at least 0", cache.truncate(first, -1));
}

TEST_F(PagedKVCacheErrors, NameWhatDoesNotFitAStep) {
  auto step = cache.append({first}, {3});
  const auto key = at::zeros({3, G, D}), value = at::zeros({3, G, Dv});
  EXPECT_ERROR(
      "PagedStep::write: key [2, 2, 3] must be [3, 2, 3]: the step's tokens, groups and head_dim",
      step.write(key.narrow(0, 0, 2), value));
  EXPECT_ERROR("PagedStep::write: value dtype (Half) must equal cache dtype (Float)",
               step.write(key, value.to(at::kHalf)));
  EXPECT_ERROR(
      "PagedStep::write: key must not require grad: a cache holds no gradients; use "
      "torch::NoGradGuard",
      step.write(key.clone().requires_grad_(), value));
  EXPECT_ERROR("PagedStep::write: layer (1) must be at least 0 and below layers (1)",
               step.write(key, value, 1));
  cache.append({second}, {1});
  EXPECT_ERROR(
      "PagedStep::write: the step must be used before the cache changes: truncate its sequences to "
      "their lengths before it, and append again",
      step.write(key, value));
}

TEST_F(PagedKVCacheErrors, GiveAdviceThatIsRight) {
  torch::manual_seed(moved(1));
  const auto query = uniform({3, H, D}, at::kFloat), key = uniform({3, G, D}, at::kFloat);
  const auto value = uniform({3, G, Dv}, at::kFloat);
  auto late = cache.append({first}, {3});
  cache.append({second}, {1});
  value_error([&] { late.write(key, value); });
  cache.truncate(first, 0);
  auto step = cache.append({first}, {3});
  const at::NoGradGuard no_grad;  // what a key that requires grad needs
  step.write(key.clone().requires_grad_(), value);
  const auto heads = [](const at::Tensor& tokens) { return tokens.transpose(0, 1).unsqueeze(0); };
  const auto expected =
      attend(heads(query), heads(key), heads(value), AttendOptions().causal(true));
  EXPECT_TRUE(is_close(heads(attend_paged(query, step)), expected, 1e-6));
}

}  // namespace
}  // namespace heed::test::of_paged_kv_cache_errors
