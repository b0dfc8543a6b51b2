// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/attention_inputs.h>
#include <heed/group_query_attention.h>
#include <heed/paged_kv_cache.h>
#include <torch/utils.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "unit/modules/attentions/small_attention.h"

namespace heed::test::of_attention_inputs {
namespace {

TEST(CachedAttention, KeepsTheKeysOfALeftWindow) {
  torch::manual_seed(moved(13));
  const at::NoGradGuard no_grad;
  auto module = made(rotary_options().causal(true).left_window(2));
  auto window = made(rotary_options().causal(true).window(3));
  for (size_t i = 0; i < window->parameters().size(); ++i) {
    window->parameters()[i].copy_(module->parameters()[i]);
  }
  const auto x = uniform({B, L, E}, at::kDouble);
  const auto expected = module->forward(x);
  EXPECT_TRUE(is_close(expected, window->forward(x), kTolerance));
  for (const int64_t chunk : {1, 3, 7}) {
    auto cache = module->make_cache(B, std::max<int64_t>(chunk + 2, 3));
    EXPECT_EQ(cache.options().window(), 3);
    EXPECT_TRUE(is_close(in_chunks(module, x, cache, chunk), expected, kTolerance));
  }
  const auto paged = module->make_paged_cache(/*pages=*/4);
  EXPECT_EQ(paged.options().window(), 3);
  auto narrow = window->make_cache(B, 5);
  auto wider = made(rotary_options().causal(true).left_window(3));
  EXPECT_ERROR("GroupQueryAttention: cache window (3) must be at least the module's (4)",
               wider->forward_cached(x, narrow));
}

TEST(CachedAttention, TakesRotaryAngles) {
  torch::manual_seed(moved(14));
  const at::NoGradGuard no_grad;
  auto module = made(rotary_options().causal(true));
  const auto x = uniform({B, L, E}, at::kDouble);
  const auto angles = uniform({B, 1, L, D / 2}, at::kDouble) * 3;
  const auto given = [&](int64_t first, int64_t count) {
    const auto own = angles.narrow(2, first, count);
    return AttentionInputs().rotary_angles(RotaryAngles{own.cos(), own.sin()});
  };
  const auto expected = module->forward(x, given(0, L));
  auto cache = module->make_cache(B, L);
  for (int64_t first = 0; first < L; first += 2) {
    const auto count = std::min<int64_t>(2, L - first);
    const auto output =
        module->forward_cached(x.narrow(1, first, count), cache, {}, given(first, count));
    EXPECT_TRUE(is_close(output, expected.narrow(1, first, count), kTolerance));
  }
  // Two sequences in pages.
  auto paged = module->make_paged_cache(/*pages=*/4);
  const auto sequences = std::vector<int64_t>{paged.add(), paged.add()};
  auto step = paged.append(sequences, {5, 3});
  const auto of_step = [](const at::Tensor& rows, int64_t dim) {
    return at::cat({rows[0].narrow(dim, 0, 5), rows[1].narrow(dim, 0, 3)}, dim).unsqueeze(0);
  };
  const auto own = of_step(angles, 1);
  const auto output =
      module->forward_cached(of_step(x, 0), step, /*layer=*/0,
                             AttentionInputs().rotary_angles(RotaryAngles{own.cos(), own.sin()}));
  EXPECT_TRUE(is_close(output, of_step(expected, 0), kTolerance));
}

TEST(CachedAttention, TakesARelativeBias) {
  torch::manual_seed(moved(15));
  const at::NoGradGuard no_grad;
  const auto inputs = AttentionInputs().relative_bias(uniform({H, 7}, at::kDouble));
  const std::vector<int64_t> all;
  for (const bool slides : {false, true}) {
    auto options = plain_options().causal(true);
    if (slides) options.left_window(2);
    auto module = made(options);
    const auto x = uniform({2, L, E}, at::kDouble);
    const auto expected = module->forward(x, inputs);
    auto cache = module->make_cache(2, slides ? 4 : L);
    EXPECT_TRUE(is_close(in_chunks(module, x, cache, 2, all, inputs), expected, kTolerance));
    // Sequences of different lengths.
    auto uneven = module->make_cache(2, L);
    auto output = module->forward_cached(x.narrow(1, 0, 5), uneven, {5, 2}, inputs);
    EXPECT_TRUE(is_close(output[0], expected[0].narrow(0, 0, 5), kTolerance));
    EXPECT_TRUE(is_close(output[1].narrow(0, 0, 2), expected[1].narrow(0, 0, 2), kTolerance));
    const auto next = at::stack({x[0].narrow(0, 5, 2), x[1].narrow(0, 2, 2)});
    output = module->forward_cached(next, uneven, {}, inputs);
    EXPECT_TRUE(is_close(output[0], expected[0].narrow(0, 5, 2), kTolerance));
    EXPECT_TRUE(is_close(output[1], expected[1].narrow(0, 2, 2), kTolerance));
    auto paged = module->make_paged_cache(/*pages=*/4);
    const auto sequences = std::vector<int64_t>{paged.add(), paged.add()};
    auto step = paged.append(sequences, {5, 2});
    const auto rows = at::cat({x[0].narrow(0, 0, 5), x[1].narrow(0, 0, 2)}).unsqueeze(0);
    output = module->forward_cached(rows, step, /*layer=*/0, inputs)[0];
    EXPECT_TRUE(is_close(output.narrow(0, 0, 5), expected[0].narrow(0, 0, 5), kTolerance));
    EXPECT_TRUE(is_close(output.narrow(0, 5, 2), expected[1].narrow(0, 0, 2), kTolerance));
  }
}

TEST(CachedAttention, RefusesOtherInputs) {
  const at::NoGradGuard no_grad;
  const auto x = at::zeros({B, L, E}, at::kDouble);
  const auto numbers = at::zeros({L}, at::kLong);
  const auto scores = at::ones({L, L}, at::kBool);
  const std::vector<std::pair<std::string, AttentionInputs>> refused = {
      {"mask", scores},
      {"bias", AttentionInputs().bias(scores.to(at::kDouble))},
      {"documents", AttentionInputs().documents(numbers)},
      {"positions", AttentionInputs().positions(numbers)},
      {"query_lengths", AttentionInputs().query_lengths(numbers)},
      {"key_lengths", AttentionInputs().key_lengths(numbers)},
      {"global_tokens", AttentionInputs().global_tokens(scores[0])},
      {"relative_positions", AttentionInputs()
                                 .relative_bias(at::zeros({H, 1}, at::kDouble))
                                 .relative_positions(numbers)}};
  auto module = made(rotary_options().causal(true));
  for (const auto& each : refused) {
    const auto text = "GroupQueryAttention: " + each.first + " must be absent with a cache";
    const auto& inputs = each.second;
    auto cache = module->make_cache(B, L);
    EXPECT_ERROR(text, module->forward_cached(x, cache, {}, inputs));
    EXPECT_EQ(cache.lengths(), std::vector<int64_t>(B, 0));
    auto paged = module->make_paged_cache(/*pages=*/1);
    auto step = paged.append({paged.add()}, {L});
    EXPECT_ERROR(text, module->forward_cached(x.narrow(0, 0, 1), step, 0, inputs));
  }
  const auto error = [&](const GroupQueryAttentionOptions& options) {
    const auto own = made(options);
    auto cache = own->make_cache(B, L);
    return value_error([&] { own->forward_cached(x, cache); });
  };
  EXPECT_EQ(error(plain_options().causal(true).top_left(true)),
            "GroupQueryAttention: top_left must be false with a cache");
  EXPECT_EQ(error(plain_options().causal(true).right_window(0)),
            "GroupQueryAttention: right_window (0) must be absent with a cache");
}

}  // namespace
}  // namespace heed::test::of_attention_inputs
