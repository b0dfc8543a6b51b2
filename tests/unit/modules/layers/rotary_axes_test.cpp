// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_nested_tensor_from_tensor_list.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/group_query_attention.h>
#include <heed/kv_cache.h>
#include <heed/paged_kv_cache.h>
#include <heed/rotary_embedding.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "unit/modules/layers/turned_pairs.h"

/// Rotary embeddings with positions on several axes.

namespace heed::test::rotary_axes {
namespace {

using Numbers = std::vector<int64_t>;

constexpr int64_t kFarthest = 100;

/// The angle of a pair of R elements at a position on each axis.
double angle_of(const RotaryEmbeddingOptions& options, int64_t pair, const Numbers& position) {
  const auto R = options.rotary_dim().value_or(options.head_dim());
  size_t axis = 0;
  auto within = pair;
  while (within >= options.sections()[axis]) within -= options.sections()[axis++];
  const auto exponent =
      options.restart_sections()
          ? static_cast<double>(within) / static_cast<double>(options.sections()[axis])
          : 2.0 * static_cast<double>(pair) / static_cast<double>(R);
  return static_cast<double>(position[axis]) * std::pow(options.base(), -exponent);
}

/// The turns at positions [B or 1, L, axes].
Turns turns_of(const RotaryEmbeddingOptions& options, const at::Tensor& positions) {
  const auto pairs = options.rotary_dim().value_or(options.head_dim()) / 2;
  const auto rows = positions.expand({B, -1, -1}).cpu().to(at::kLong);
  const auto length = rows.size(1);
  Turns turns{at::empty({B, length, pairs}, at::kDouble),
              at::empty({B, length, pairs}, at::kDouble)};
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t l = 0; l < length; ++l) {
      Numbers position;
      for (int64_t axis = 0; axis < rows.size(2); ++axis) {
        position.push_back(rows[b][l][axis].item<int64_t>());
      }
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const auto angle = angle_of(options, pair, position);
        turns.cos[b][l][pair] = std::cos(angle);
        turns.sin[b][l][pair] = std::sin(angle);
      }
    }
  }
  return turns;
}

/// Every kind of sections of at most D elements, with and without elements that stay the same.
std::vector<RotaryEmbeddingOptions> every_kind() {
  std::vector<RotaryEmbeddingOptions> all;
  for (const auto& sections :
       {Numbers{2, 2}, Numbers{1, 3}, Numbers{2, 1, 1}, Numbers{1, 1, 1}, Numbers{1, 1}}) {
    int64_t pairs = 0;
    for (const auto own : sections) pairs += own;
    for (const auto pairing : {RotaryPairing::half_split, RotaryPairing::interleaved}) {
      for (const bool restart : {false, true}) {
        all.push_back(RotaryEmbeddingOptions(D)
                          .rotary_dim(2 * pairs)
                          .base(100.0)
                          .pairing(pairing)
                          .sections(sections)
                          .restart_sections(restart));
      }
    }
  }
  return all;
}

int64_t axes_of(const RotaryEmbeddingOptions& options) {
  return static_cast<int64_t>(options.sections().size());
}

/// Also the rounding of angles, in float64.
double tolerance_of(at::ScalarType dtype) {
  return 4 * kFarthest * unit_roundoff(at::kDouble) + rounding(dtype);
}

TEST(RotarySections, TurnEachPairByThePositionOnItsAxis) {
  torch::manual_seed(moved(1));
  for (const auto& options : every_kind()) {
    RotaryEmbedding rotary(options);
    const auto axes = axes_of(options);
    for (const int64_t length : {L, int64_t{1}, int64_t{0}}) {
      const std::vector<Numbers> shapes = {{B, length, axes}, {1, length, axes}, {length, axes}};
      for (const auto& shape : shapes) {
        const auto drawn = at::randint(-kFarthest, kFarthest, shape, at::kLong);
        const auto rows = drawn.dim() == 3 ? drawn : drawn.unsqueeze(0);
        for (const auto device : devices()) {
          for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
            const auto x =
                uniform({B, length, H, D}, at::device(device).dtype(dtype)).transpose(1, 2);
            const auto expected = turned(x, turns_of(options, rows), options.pairing());
            const auto positions = drawn.to(device);
            const auto output = rotary(x, positions);
            EXPECT_EQ(output.scalar_type(), dtype);
            EXPECT_TRUE(is_close(output, expected, tolerance_of(dtype)));
            EXPECT_TRUE(at::equal(rotary(x, positions.to(at::kInt)), output));
            EXPECT_TRUE(at::equal(rotary->rotate(x, rotary->angles(positions, dtype)), output));
          }
        }
      }
    }
  }
}

TEST(RotarySections, TakeOnePositionForAllAxes) {
  torch::manual_seed(moved(2));
  for (const auto& options : every_kind()) {
    RotaryEmbedding rotary(options);
    const auto x = uniform({B, H, L, D}, at::kDouble);
    const auto index = at::arange(L);
    const auto expected = rotary(x, index.unsqueeze(1).expand({L, axes_of(options)}));
    EXPECT_TRUE(at::equal(rotary(x), expected));
    EXPECT_TRUE(at::equal(rotary(x, index), expected));
    EXPECT_TRUE(at::equal(rotary(x, index.unsqueeze(1)), expected));
    const auto rows = at::tensor({0, 1, 2, 3, 4, 7, 8, 9, 10, 11}, at::kLong).view({B, L, 1});
    EXPECT_TRUE(at::equal(rotary(x, rows), rotary(x, rows.expand({B, L, axes_of(options)}))));
    EXPECT_TRUE(at::equal(rotary->rotate(x, rotary->angles(0, L, x.options())), expected));
    if (options.restart_sections()) continue;
    const auto plain = RotaryEmbeddingOptions(options).sections({});
    EXPECT_TRUE(at::equal(RotaryEmbedding(plain)->forward(x), expected));
  }
}

/// Scalings change the frequencies of all pairs together, or those of each section that restarts.
TEST(RotarySections, TakeScalingsThatChangeFrequenciesAlone) {
  const std::vector<RotaryScaling> scalings = {LinearScaling(3.0), NtkScaling(3.0),
                                               YarnScaling(3.0, 64).beta_fast(2.0),
                                               Llama3Scaling(3.0, 64)};
  const auto positions = at::tensor({3, 50, 11, 0, 20, 7}, at::kLong).view({3, 2});
  const auto angles = [](const RotaryEmbeddingOptions& chosen, const at::Tensor& numbers) {
    return RotaryEmbedding(chosen)->angles(numbers, at::kDouble);
  };
  for (const auto& scaling : scalings) {
    const auto options = RotaryEmbeddingOptions(20).scaling(scaling).sections({4, 6});
    const auto own = angles(options, positions);
    const auto restarted =
        angles(RotaryEmbeddingOptions(options).restart_sections(true), positions);
    for (int64_t axis = 0; axis < 2; ++axis) {
      const auto first = axis == 0 ? 0 : 4, pairs = axis == 0 ? 4 : 6;
      const auto on_axis = positions.select(1, axis);
      const auto whole = angles(RotaryEmbeddingOptions(20).scaling(scaling), on_axis);
      EXPECT_TRUE(at::equal(own.cos.narrow(3, first, pairs), whole.cos.narrow(3, first, pairs)));
      EXPECT_TRUE(at::equal(own.sin.narrow(3, first, pairs), whole.sin.narrow(3, first, pairs)));
      const auto alone = angles(RotaryEmbeddingOptions(2 * pairs).scaling(scaling), on_axis);
      EXPECT_TRUE(at::equal(restarted.cos.narrow(3, first, pairs), alone.cos));
      EXPECT_TRUE(at::equal(restarted.sin.narrow(3, first, pairs), alone.sin));
    }
  }
}

/// Lengths matter to no scaling that sections take, but are checked.
TEST(RotarySections, TakeLengths) {
  RotaryEmbedding rotary(RotaryEmbeddingOptions(D).sections({2, 2}));
  EXPECT_FALSE(rotary->depends_on_length());
  const auto positions = at::arange(B * L * 2).view({B, L, 2});
  const auto angles = rotary->angles(positions, at::tensor({20, 30}, at::kLong).view({B, 1}));
  EXPECT_TRUE(at::equal(angles.cos, rotary->angles(positions).cos));
  EXPECT_ERROR("RotaryEmbedding: lengths [3] must be broadcast to positions; positions [2, 5]",
               rotary->angles(positions, at::arange(3)));
}

GroupQueryAttention attention_with(const RotaryEmbeddingOptions& rotary, at::Device device) {
  GroupQueryAttention module(GroupQueryAttentionOptions(2 * D, /*head_num=*/2, /*group_num=*/1)
                                 .causal(true)
                                 .rotary(rotary));
  module->to(device, at::kDouble);
  module->eval();
  return module;
}

/// Rows of a batch append different numbers of tokens.
TEST(RotarySections, GiveCachedTokensTheirIndexOnEveryAxis) {
  torch::manual_seed(moved(3));
  const at::NoGradGuard no_grad;
  for (const auto device : devices()) {
    const auto x = uniform({B, L, 2 * D}, at::device(device).dtype(at::kDouble));
    for (const bool restart : {false, true}) {
      const auto options =
          RotaryEmbeddingOptions(D).base(10.0).sections({1, 1, 2}).restart_sections(restart);
      auto module = attention_with(options, device);
      const auto whole = module->forward(x);
      for (const bool fixed : {false, true}) {
        auto cache = module->make_cache(B, L, CacheOptions().fixed_shapes(fixed));
        EXPECT_TRUE(is_close(in_chunks(module, x, cache, 2), whole, 1e-12));
        auto counted = module->make_cache(B, 2 * L, CacheOptions().fixed_shapes(fixed));
        module->forward_cached(x.narrow(1, 0, 3), counted, {3, 1});
        const auto rows =
            at::cat({x.narrow(0, 0, 1).narrow(1, 3, 2), x.narrow(0, 1, 1).narrow(1, 1, 2)});
        const auto later = module->forward_cached(rows, counted);
        EXPECT_TRUE(is_close(later[0], whole[0].narrow(0, 3, 2), 1e-12));
        EXPECT_TRUE(is_close(later[1], whole[1].narrow(0, 1, 2), 1e-12));
      }
      auto pages = module->make_paged_cache(8, PagedCacheOptions().page_size(16));
      const Numbers sequences = {pages.add(), pages.add()};
      auto step = pages.append(sequences, {L, 3});
      const auto tokens = at::cat({x[0], x[1].narrow(0, 0, 3)}).unsqueeze(0);
      const auto output = module->forward_cached(tokens, step)[0];
      EXPECT_TRUE(is_close(output.narrow(0, 0, L), whole[0], 1e-12));
      EXPECT_TRUE(is_close(output.narrow(0, L, 3), whole[1].narrow(0, 0, 3), 1e-12));
      const auto nested = module(at::_nested_tensor_from_tensor_list({x[0], x[1].narrow(0, 0, 3)}));
      EXPECT_TRUE(is_close(nested.unbind()[1], whole[1].narrow(0, 0, 3), 1e-12));
    }
  }
}

TEST(RotarySections, ArePrintedComparedAndCloned) {
  const auto options = RotaryEmbeddingOptions(D).sections({1, 1, 2});
  EXPECT_EQ(printed(RotaryEmbedding(options)),
            "heed::RotaryEmbedding(head_dim=8, base=10000, sections=[1, 1, 2])");
  RotaryEmbedding restarts(RotaryEmbeddingOptions(options).restart_sections(true));
  EXPECT_EQ(printed(restarts),
            "heed::RotaryEmbedding(head_dim=8, base=10000, sections=[1, 1, 2], "
            "restart_sections=true)");
  EXPECT_TRUE(options == RotaryEmbeddingOptions(options));
  EXPECT_FALSE(options == RotaryEmbeddingOptions(D));
  EXPECT_FALSE(options == RotaryEmbeddingOptions(options).sections({1, 2, 1}));
  EXPECT_FALSE(options == restarts->options);
  const auto x = uniform({B, H, L, D}, at::kFloat);
  const auto clone = std::dynamic_pointer_cast<RotaryEmbeddingImpl>(restarts->clone());
  EXPECT_TRUE(at::equal(clone->forward(x), restarts(x)));
}

TEST(RotarySections, RefuseWhatHasNoMeaning) {
  const auto error = [](const RotaryEmbeddingOptions& options) {
    return value_error([&] { RotaryEmbedding{options}; });
  };
  const auto sections = [](const Numbers& pairs) {
    return RotaryEmbeddingOptions(D).sections(pairs);
  };
  EXPECT_EQ(error(RotaryEmbeddingOptions(D).restart_sections(true)),
            "RotaryEmbedding: restart_sections must be used with sections");
  EXPECT_EQ(error(sections({4})), "RotaryEmbedding: sections size (1) must be 2 or 3");
  EXPECT_EQ(error(sections({1, 1, 1, 1})), "RotaryEmbedding: sections size (4) must be 2 or 3");
  EXPECT_EQ(error(sections({4, 0})), "RotaryEmbedding: sections (0) must be at least 1");
  EXPECT_EQ(error(sections({1, 2})),
            "RotaryEmbedding: sections [1, 2] must sum to half of rotary_dim (8)");
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(error(sections({kMost, kMost, 6})),
            "RotaryEmbedding: sections [9223372036854775807, 9223372036854775807, 6] must sum to "
            "half of rotary_dim (8)");
  EXPECT_EQ(error(sections({2, 2}).scaling(NtkScaling(2.0).original_length(8))),
            "RotaryEmbedding: sections must not be used with NtkScaling with original_length: its "
            "frequencies depend on the length");
  EXPECT_EQ(error(sections({2, 2}).scaling(LongRopeScaling({1, 1, 1, 1}, {2, 2, 2, 2}, 8))),
            "RotaryEmbedding: sections must not be used with LongRopeScaling: its frequencies "
            "depend on the length");
  EXPECT_EQ(error(sections({3, 1}).restart_sections(true).scaling(NtkScaling(2.0))),
            "RotaryEmbedding: sections (1) that restart must be above 1 for NTK scaling");
  RotaryEmbedding{sections({3, 1}).scaling(NtkScaling(2.0))};

  RotaryEmbedding rotary(sections({1, 1, 2}));
  const auto x = at::ones({B, H, L, D});
  const auto of_positions = [&](const at::Tensor& positions) {
    return value_error([&] { rotary(x, positions); });
  };
  const std::string wanted =
      "RotaryEmbedding: positions must be [L], [L, 3 or 1] or [B, L, 3 or 1] with sections "
      "[1, 1, 2]; positions ";
  EXPECT_EQ(of_positions(at::zeros({B, L}, at::kLong)), wanted + "[2, 5]");
  EXPECT_EQ(of_positions(at::zeros({B, L, 2}, at::kLong)), wanted + "[2, 5, 2]");
  EXPECT_EQ(of_positions(at::zeros({1, B, L, 3}, at::kLong)), wanted + "[1, 2, 5, 3]");
  EXPECT_EQ(of_positions(at::zeros({}, at::kLong)), wanted + "[]");
  EXPECT_EQ(of_positions(at::Tensor()), "RotaryEmbedding: positions must be defined");
  EXPECT_EQ(of_positions(at::zeros({L, 3})),
            "RotaryEmbedding: positions dtype (Float) must be an integer");
  EXPECT_EQ(of_positions(at::zeros({L - 1, 3}, at::kLong)),
            "RotaryEmbedding: x dim 2 (5) must equal the number of positions (4)");
  EXPECT_EQ(of_positions(at::zeros({3, L, 3}, at::kLong)),
            "RotaryEmbedding: x dim 0 (2) must equal positions dim 0 (3)");
}

}  // namespace
}  // namespace heed::test::rotary_axes
