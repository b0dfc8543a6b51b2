// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/attend_paged.h>
#include <heed/block_mask.h>
#include <heed/quantize.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <atomic>
#include <functional>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/reference_cases.h"
#include "unit/routes.h"

// Masks by a rule: their tiles, and that `attend` computes with them as with the same mask as a
// tensor, to the bit if it takes the same path.

namespace heed::test::by_rule {
namespace {

constexpr int64_t kTile = BlockMask::kTile;

struct Rule {
  std::string name;
  std::function<bool(int64_t b, int64_t h, int64_t i, int64_t j)> sees;
};

/// Rules for L queries, the last of which is at the last of S keys.
std::vector<Rule> rules(int64_t L, int64_t S) {
  const auto apart = S - L;
  const auto is_even = [](int64_t b, int64_t h, int64_t i, int64_t j) {
    return ((i * 7919 + j * 104729 + b * 31 + h * 17) >> 3) % 2 == 0;
  };
  return {
      {"causal", [=](auto, auto, auto i, auto j) { return j <= i + apart; }},
      {"window", [=](auto, auto, auto i, auto j) { return std::abs(i + apart - j) < 20; }},
      {"documents", [](auto, auto, auto i, auto j) { return i / 37 == j / 37; }},
      {"window and global",
       [=](auto, auto, auto i, auto j) { return j <= i + apart && (j > i + apart - 30 || j < 5); }},
      {"irregular", is_even},
      {"rows that see nothing",
       [=](auto b, auto h, auto i, auto j) { return i % 3 == 1 && is_even(b, h, i, j); }},
      {"batches and heads",
       [](auto b, auto h, auto i, auto j) { return (b + h + i / 16 + j / 48) % 2 == 0; }},
      {"whole tiles", [](auto, auto, auto i, auto j) { return (i / kTile + j / kTile) % 3 != 1; }},
      {"nothing", [](auto, auto, auto, auto) { return false; }},
      {"everything", [](auto, auto, auto, auto) { return true; }},
  };
}

/// The rule as a tensor: bool [B, H, L, S].
at::Tensor dense(const Rule& rule, at::IntArrayRef sizes) {
  auto mask = at::zeros(sizes, at::kBool);
  auto* element = mask.mutable_data_ptr<bool>();
  for (int64_t b = 0; b < sizes[0]; ++b) {
    for (int64_t h = 0; h < sizes[1]; ++h) {
      for (int64_t i = 0; i < sizes[2]; ++i) {
        for (int64_t j = 0; j < sizes[3]; ++j) *element++ = rule.sees(b, h, i, j);
      }
    }
  }
  return mask;
}

BlockMask by_tiles(const Rule& rule, at::IntArrayRef sizes) {
  return make_block_mask(sizes[0], sizes[1], sizes[2], sizes[3], rule.sees);
}

/// The tiles of a mask that are full, partial and hidden.
std::vector<int64_t> count_tiles(const at::Tensor& mask) {
  std::vector<int64_t> counts(3, 0);
  for (const auto& head : mask.flatten(0, 1).unbind(0)) {
    for (int64_t i = 0; i < mask.size(2); i += kTile) {
      for (int64_t j = 0; j < mask.size(3); j += kTile) {
        const auto tile = head.slice(0, i, i + kTile).slice(1, j, j + kTile);
        ++counts[tile.all().item<bool>() ? 0 : tile.any().item<bool>() ? 1 : 2];
      }
    }
  }
  return counts;
}

TEST(BlockMask, HoldsTheElementsOfItsRule) {
  for (const auto& [L, S] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 200}, {200, 1}, {64, 64}, {65, 63}, {128, 192}, {130, 300}}) {
    for (const int64_t heads : {1, 3}) {
      for (const auto& rule : rules(L, S)) {
        const auto name = rule.name + ", L " + std::to_string(L) + ", S " + std::to_string(S);
        const std::vector<int64_t> sizes = {heads == 1 ? 1 : 2, heads, L, S};
        std::atomic<int64_t> calls{0};
        const BlockMask mask = make_block_mask(sizes[0], sizes[1], L, S,
                                               [&](int64_t b, int64_t h, int64_t i, int64_t j) {
                                                 ++calls;
                                                 return rule.sees(b, h, i, j);
                                               });
        const auto expected = dense(rule, sizes);
        EXPECT_EQ(calls.load(), expected.numel()) << name;
        EXPECT_EQ(mask.sizes(), at::IntArrayRef(sizes)) << name;
        EXPECT_TRUE(mask.mask().equal(expected)) << name;
        const auto counts = count_tiles(expected);
        EXPECT_EQ((std::vector{mask.full_tiles(), mask.partial_tiles(), mask.hidden_tiles()}),
                  counts)
            << name;
        const auto total = counts[0] + counts[1] + counts[2];
        EXPECT_DOUBLE_EQ(mask.sparsity(),
                         100.0 * static_cast<double>(counts[2]) / static_cast<double>(total))
            << name;
      }
    }
  }
}

TEST(BlockMask, MayBeEmpty) {
  for (const auto& sizes :
       std::vector<std::vector<int64_t>>{{0, 1, 5, 5}, {1, 0, 5, 5}, {1, 1, 0, 5}, {1, 1, 5, 0}}) {
    const auto mask = by_tiles(rules(5, 5).front(), sizes);
    EXPECT_EQ(mask.mask().sizes(), at::IntArrayRef(sizes));
    EXPECT_EQ(mask.full_tiles() + mask.partial_tiles() + mask.hidden_tiles(), 0);
    EXPECT_EQ(mask.sparsity(), 0.0);
  }
}

TEST(BlockMask, IsPrinted) {
  std::ostringstream stream;
  stream << by_tiles(rules(130, 130).front(), {1, 1, 130, 130});
  EXPECT_EQ(stream.str(),
            "BlockMask [1, 1, 130, 130]: 3 full, 3 partial and 3 hidden tiles of 64 x 64, sparsity "
            "33.3 %");
}

/// Hidden tiles take no memory; runs of full ones a few bytes; partial ones a bit for each element.
TEST(BlockMask, TakesMemoryForPartialTilesAndRuns) {
  constexpr int64_t kLength = 4096, kRows = kLength / kTile, kTileBytes = kTile * kTile / 8;
  constexpr int64_t kRowBytes = 128, kOwnBytes = 256;
  const auto bytes = [&](const std::function<bool(int64_t, int64_t)>& sees) {
    return make_block_mask(1, 1, kLength, kLength,
                           [&](auto, auto, int64_t i, int64_t j) { return sees(i, j); })
        .nbytes();
  };
  const auto rows = kRows * kRowBytes + kOwnBytes;
  EXPECT_LE(bytes([](auto, auto) { return false; }), rows);
  EXPECT_LE(bytes([](auto, auto) { return true; }), rows);
  EXPECT_LE(bytes([](auto i, auto j) { return j <= i; }), rows + kRows * kTileBytes);
  EXPECT_LE(bytes([](auto i, auto j) { return j <= i && j > i - kTile; }),
            rows + 2 * kRows * kTileBytes);
  const auto all_partial = bytes([](auto i, auto j) { return (i + j) % 2 == 0; });
  EXPECT_GE(all_partial, kLength * kLength / 8);
  EXPECT_LE(all_partial, kLength * kLength / 8 + rows);
}

TEST(BlockMask, ThrowsTheErrorOfItsRule) {
  const auto make = [] {
    make_block_mask(1, 1, 200, 200, [](auto, auto, int64_t i, int64_t /*j*/) -> bool {
      if (i == 150) throw std::runtime_error("no rule for 150");
      return true;
    });
  };
  EXPECT_THROW(make(), std::runtime_error);
}

/// A call with a mask by a rule, and the same call with the mask as a tensor.
struct Pair {
  AttendOptions by_rule, by_tensor;
};

Pair pair_of(const AttendOptions& options, const Rule& rule, at::IntArrayRef sizes) {
  Pair pair{options, options};
  pair.by_rule.block_mask(by_tiles(rule, sizes));
  auto mask = dense(rule, sizes);
  if (const auto& other = options.mask()) mask = mask.logical_and(four_dimensional(*other));
  pair.by_tensor.mask(mask);
  return pair;
}

/// Output, weights and lse, in inference. A row that sees nothing has -1000 in place of -inf.
std::vector<at::Tensor> inferred(const Inputs& inputs, const AttendOptions& options) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(moved(5));
  const auto [output, lse] = attend_with_lse(inputs, options);
  const auto [same, weights] = attend_with_weights(inputs, options);
  const auto hidden = lse.eq(-std::numeric_limits<double>::infinity());
  return {output, lse.masked_fill(hidden, -1e3), same, weights};
}

/// Output and gradients of query, key and value.
std::vector<at::Tensor> trained(const Inputs& inputs, const AttendOptions& options) {
  torch::manual_seed(moved(6));
  const Inputs leaves = {inputs.query.detach().requires_grad_(),
                         inputs.key.detach().requires_grad_(),
                         inputs.value.detach().requires_grad_()};
  const auto output = attend(leaves, options);
  auto results =
      torch::autograd::grad({output}, {leaves.query, leaves.key, leaves.value}, {output.detach()});
  results.push_back(output.detach());
  return results;
}

void expect_same(const Inputs& inputs, const Pair& pair, const std::string& name) {
  const auto path = attend_path(inputs, pair.by_tensor);
  // LibTorch's products may round in another way where tensors lie elsewhere in memory: MKL's do.
  const bool of_heed = path == AttendPath::decode || path == AttendPath::block;
  const auto bound = 4 * forward_tolerance(inputs.query.scalar_type());
  const auto agree = [&](const auto& found, const auto& expected) {
    return of_heed ? are_equal(found, expected) : are_close(found, expected, bound);
  };
  EXPECT_TRUE(agree(inferred(inputs, pair.by_rule), inferred(inputs, pair.by_tensor))) << name;
  EXPECT_TRUE(agree(trained(inputs, pair.by_rule), trained(inputs, pair.by_tensor))) << name;
  const at::NoGradGuard no_grad;
  torch::manual_seed(moved(7));
  const auto output = attend(inputs, pair.by_rule);
  torch::manual_seed(moved(7));
  const auto expected = attend(inputs, pair.by_tensor);
  const bool is_same_path = attend_path(inputs, pair.by_rule) == path;
  if (of_heed && is_same_path) {
    EXPECT_TRUE(output.equal(expected)) << name;
  } else if (is_same_path || pair.by_rule.dropout() == 0.0) {
    EXPECT_TRUE(is_close(output, expected, 2 * forward_tolerance(inputs.query.scalar_type())))
        << name;
  }
}

class AttendByRule : public ::testing::TestWithParam<std::tuple<Route, at::ScalarType>> {};

INSTANTIATE_TEST_SUITE_P(Routes, AttendByRule,
                         ::testing::Combine(::testing::ValuesIn(all_routes()),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         kNamed);

TEST_P(AttendByRule, IsAsByTensor) {
  const auto& [route, dtype] = GetParam();
  const ScopedRoute in_force(route);
  torch::manual_seed(moved(1));
  for (const auto& [L, S] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 300}, {3, 200}, {70, 70}, {200, 130}, {40, 600}}) {
    const auto inputs = make_inputs({2, 4, 2, L, S, 8, 6}, dtype);
    bool is_shared = true;  // by batches and heads
    for (const auto& rule : rules(L, S)) {
      is_shared = !is_shared;
      const auto pair = pair_of({}, rule, {is_shared ? 1 : 2, is_shared ? 1 : 4, L, S});
      // A mask by a rule that hides nothing is no mask, so the call may take another path.
      if (pair.by_tensor.mask()->all().item<bool>()) continue;
      expect_same(inputs, pair, rule.name + ", L " + std::to_string(L));
    }
  }
}

TEST_P(AttendByRule, IsIntersectedWithAllElse) {
  const auto& [route, dtype] = GetParam();
  const ScopedRoute in_force(route);
  torch::manual_seed(moved(2));
  for (const auto& [L, S] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 150}, {100, 100}, {90, 300}}) {
    const auto inputs = make_inputs({2, 4, 2, L, S, 8, 6}, dtype);
    const auto padding = at::rand({2, 1, 1, S}).gt(0.3);
    const auto bias = uniform({1, 4, L, S}, at::kFloat);
    const auto documents = at::arange(S).floor_divide(41);
    const std::vector<AttendOptions> all = {
        AttendOptions().mask(padding),
        AttendOptions().mask(at::rand({L, S}).gt(0.3)).causal(true),
        AttendOptions().causal(true).window(33),
        AttendOptions().documents(documents.narrow(0, S - L, L)).key_documents(documents),
        AttendOptions().bias(bias).softcap(2.0),
        AttendOptions().alibi_slopes(at::rand({4})).sinks(at::rand({4})),
        AttendOptions().dropout(0.3)};
    const auto choices = rules(L, S);
    for (size_t n = 0; n < all.size(); ++n) {
      for (const auto& rule : {choices[3], choices[4], choices[6]}) {
        expect_same(inputs, pair_of(all[n], rule, {2, 1, L, S}),
                    rule.name + ", options " + std::to_string(n) + ", L " + std::to_string(L));
      }
    }
  }
}

TEST(BlockMask, GivesTheResultsOfTheReference) {
  torch::manual_seed(moved(3));
  for (const auto device : devices()) {
    std::vector<ReferenceCase> cases;
    for (const auto& [L, S] : std::vector<std::pair<int64_t, int64_t>>{{66, 66}, {20, 130}}) {
      for (const auto& rule : rules(L, S)) {
        const int64_t heads = cases.size() % 2 == 0 ? 1 : 4;
        cases.push_back({{2, 4, 2, L, S, 8, 8},
                         AttendOptions().block_mask(by_tiles(rule, {1, heads, L, S})),
                         rule.name + ", H " + std::to_string(heads)});
      }
    }
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf}) {
      const auto options = at::device(device).dtype(dtype);
      ASSERT_NO_FATAL_FAILURE(expect_outputs_of_reference(cases, options));
      ASSERT_NO_FATAL_FAILURE(expect_gradients_of_reference(cases, options));
    }
  }
}

TEST(BlockMask, HasSecondDerivatives) {
  torch::manual_seed(moved(4));
  const auto inputs = make_inputs({1, 2, 1, 70, 80, 4, 4}, at::kDouble);
  const auto pair = pair_of({}, rules(70, 80)[4], {1, 2, 70, 80});
  const auto second = [&](const AttendOptions& options) {
    const auto leaves = leaves_of(inputs);
    const auto first = torch::autograd::grad({attend(inputs, options).square().sum()}, leaves, {},
                                             /*retain_graph=*/true, /*create_graph=*/true);
    return torch::autograd::grad({first[0].square().sum() + first[1].square().sum()}, leaves);
  };
  EXPECT_TRUE(are_equal(second(pair.by_rule), second(pair.by_tensor)));
}

TEST(BlockMask, HidesNaN) {
  if (!detail::has_kernels()) GTEST_SKIP() << kNoKernels;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  torch::manual_seed(moved(8));
  for (const int64_t L : {2, 100}) {
    const int64_t S = 300;
    const auto inputs = make_inputs({1, 2, 2, L, S, 8, 8}, at::kFloat);
    const Rule rule{"", [](auto, auto, auto i, auto j) { return j % 100 < 50 && j != i; }};
    const auto options = AttendOptions().block_mask(by_tiles(rule, {1, 1, L, S}));
    auto poisoned = inputs;
    const auto hidden = at::arange(S).remainder(100).ge(50).unsqueeze(1);
    poisoned.key = inputs.key.masked_fill(hidden, kNaN);
    poisoned.value = inputs.value.masked_fill(hidden, kNaN);
    EXPECT_TRUE(are_equal(trained(poisoned, options), trained(inputs, options))) << "L " << L;
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(attend(poisoned, options).equal(attend(inputs, options))) << "L " << L;
  }
}

TEST(BlockMask, TakesQuantizedKeys) {
  torch::manual_seed(moved(9));
  for (const int64_t L : {2, 100}) {
    const auto inputs = make_inputs({1, 4, 2, L, 300, 16, 16}, at::kFloat);
    const auto [key, key_scales] = quantize_int8(inputs.key);
    const auto [value, value_scales] = quantize_int8(inputs.value);
    const auto options = AttendOptions().key_scales(key_scales).value_scales(value_scales);
    const auto pair = pair_of(options, rules(L, 300)[3], {1, 1, L, 300});
    EXPECT_TRUE(attend(inputs.query, key, value, pair.by_rule)
                    .equal(attend(inputs.query, key, value, pair.by_tensor)))
        << "L " << L;
  }
}

TEST(BlockMask, IsSharedByThreads) {
  torch::manual_seed(moved(10));
  const auto inputs = make_inputs({1, 2, 2, 200, 200, 8, 8}, at::kFloat);
  const auto options = AttendOptions().block_mask(by_tiles(rules(200, 200)[3], {1, 1, 200, 200}));
  const auto expected = attend(inputs, options);
  std::vector<at::Tensor> outputs(4);
  std::vector<std::thread> threads;
  for (auto& output : outputs) {
    threads.emplace_back([&] { output = attend(inputs, options); });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& output : outputs) EXPECT_TRUE(output.equal(expected));
}

TEST(BlockMask, IsRefusedWhereItDoesNotFit) {
  const auto all = rules(8, 8).back();
  const auto options = [&](at::IntArrayRef sizes) {
    return AttendOptions().block_mask(by_tiles(all, sizes));
  };
  const auto x = at::zeros({2, 4, 8, 6});
  EXPECT_ERROR(
      "attend: block_mask [1, 1, 8, 9] must have the sizes [B or 1, H or 1, L, S]; query [2, 4, 8, "
      "6], key [2, 4, 8, 6]",
      attend(x, x, x, options({1, 1, 8, 9})));
  EXPECT_ERROR(
      "attend_with_lse: block_mask [2, 2, 8, 8] must have the sizes [B or 1, H or 1, L, S]; query "
      "[2, 4, 8, 6], key [2, 4, 8, 6]",
      attend_with_lse(x, x, x, options({2, 2, 8, 8})));
  EXPECT_ERROR(
      "attend: block_mask [1, 1, 1, 8] must have the sizes [B or 1, H or 1, L, S]; query [2, 4, 8, "
      "6], key [2, 4, 8, 6]",
      attend(x, x, x, options({1, 1, 1, 8})));
  EXPECT_ERROR("attend: block_mask must be absent with parents",
               attend(x, x, x, options({1, 1, 8, 8}).parents(at::arange(-1, 7))));
  const auto packed = at::zeros({8, 4, 6});
  const auto offsets = at::tensor({0, 8}, at::kLong);
  EXPECT_ERROR("attend_varlen: block_mask must be absent: the offsets say what a query may see",
               attend_varlen(packed, packed, packed, offsets, offsets, options({1, 1, 8, 8})));
  const auto pages = at::zeros({1, 4, 16, 6});
  EXPECT_ERROR("attend_paged: block_mask must be absent: the lengths say what a query may see",
               attend_paged(packed, pages, pages, at::zeros({1, 1}, at::kLong), offsets,
                            at::tensor({8}, at::kLong), options({1, 1, 8, 8})));
  EXPECT_ERROR("make_block_mask: heads (-1) must be at least 0", by_tiles(all, {1, -1, 8, 8}));
  EXPECT_ERROR("make_block_mask: mask [1, 1, 1, 281474976710656] must take at most 2^47 bytes",
               by_tiles(all, {1, 1, 1, int64_t{1} << 48}));
}

}  // namespace
}  // namespace heed::test::by_rule
