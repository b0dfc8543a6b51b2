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
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"

/// Rotary embeddings with positions on several axes, and rotations by a caller's own angles.

namespace heed::test::rotary_axes {
namespace {

using Numbers = std::vector<int64_t>;

constexpr int64_t B = 2, H = 3, L = 5, D = 8, kFarthest = 100;

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

/// Cosines and sines of the angles of each pair at each token.
struct Turns {
  at::Tensor cos, sin;  // [B, L, R / 2], float64, on the CPU
};

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

/// The numbers of the two elements of a pair.
std::pair<int64_t, int64_t> elements_of(RotaryPairing pairing, int64_t pair, int64_t pairs) {
  if (pairing == RotaryPairing::interleaved) return {2 * pair, 2 * pair + 1};
  return {pair, pair + pairs};
}

/// x [B, H, L, D] in float64 on the CPU, where each pair (a, b) is (a cos - b sin, b cos + a sin).
at::Tensor turned(const at::Tensor& x, const Turns& turns, RotaryPairing pairing) {
  auto result = x.cpu().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
  auto numbers = result.accessor<double, 4>();
  const auto cos = turns.cos.accessor<double, 3>(), sin = turns.sin.accessor<double, 3>();
  const auto pairs = turns.cos.size(2);
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t h = 0; h < x.size(1); ++h) {
      for (int64_t l = 0; l < x.size(2); ++l) {
        for (int64_t pair = 0; pair < pairs; ++pair) {
          const auto [one, other] = elements_of(pairing, pair, pairs);
          const double first = numbers[b][h][l][one], second = numbers[b][h][l][other];
          const double c = cos[b][l][pair], s = sin[b][l][pair];
          numbers[b][h][l][one] = first * c - second * s;
          numbers[b][h][l][other] = second * c + first * s;
        }
      }
    }
  }
  return result;
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

/// Products of two numbers of at most 1, each rounded, and the rounding of the result, whose size
/// is at most 2.
double rounding(at::ScalarType dtype) {
  const auto computed = unit_roundoff(dtype == at::kDouble ? at::kDouble : at::kFloat);
  return 4 * computed + 2 * unit_roundoff(dtype);
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

/// Numbers in [-1, 1) that are no cosines and sines: [batch, 1, L, R / 2].
RotaryAngles drawn_angles(int64_t batch, int64_t length, int64_t pairs,
                          const at::TensorOptions& options) {
  return {uniform({batch, 1, length, pairs}, options), uniform({batch, 1, length, pairs}, options)};
}

Turns turns_of(const RotaryAngles& angles) {
  const auto rows = [](const at::Tensor& numbers) {
    return numbers.detach().cpu().to(at::kDouble).squeeze(1).expand({B, -1, -1}).contiguous();
  };
  return {rows(angles.cos), rows(angles.sin)};
}

const std::vector<at::ScalarType> kDtypes = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

TEST(OwnRotaryAngles, TurnPairs) {
  torch::manual_seed(moved(4));
  for (const auto pairing : {RotaryPairing::half_split, RotaryPairing::interleaved}) {
    for (const int64_t rotary_dim : {2, 6, 8}) {
      RotaryEmbedding rotary(RotaryEmbeddingOptions(D).rotary_dim(rotary_dim).pairing(pairing));
      for (const auto device : devices()) {
        for (const auto dtype : kDtypes) {
          const auto x = uniform({B, L, H, D}, at::device(device).dtype(dtype)).transpose(1, 2);
          for (const auto own_dtype : kDtypes) {
            for (const auto batch : {int64_t{1}, B}) {
              const auto angles =
                  drawn_angles(batch, L, rotary_dim / 2, at::device(device).dtype(own_dtype));
              const auto output = rotary->rotate(x, angles);
              EXPECT_EQ(output.scalar_type(), dtype);
              EXPECT_TRUE(
                  is_close(output, turned(x, turns_of(angles), pairing), 2 * rounding(dtype)));
              const RotaryAngles strided{angles.cos.transpose(2, 3).contiguous().transpose(2, 3),
                                         angles.sin.neg()._neg_view()};
              EXPECT_TRUE(is_close(rotary->rotate(x, strided), output, 2 * rounding(dtype)));
            }
          }
        }
      }
    }
  }
}

/// The gradients of x, cos and sin, by the derivative of each pair, summed over whatever shares an
/// angle.
std::vector<at::Tensor> gradients_of(const at::Tensor& x, const RotaryAngles& angles,
                                     RotaryPairing pairing, const at::Tensor& of_output) {
  const auto turns = turns_of(angles);
  const Turns opposite{turns.cos, -turns.sin};
  const auto of_x = turned(of_output, opposite, pairing);
  const auto of_cos = at::zeros(angles.cos.sizes(), at::kDouble);
  const auto of_sin = at::zeros(angles.sin.sizes(), at::kDouble);
  const auto from = x.detach().cpu().to(at::kDouble), given = of_output.cpu().to(at::kDouble);
  const auto pairs = angles.cos.size(3);
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t h = 0; h < x.size(1); ++h) {
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const auto [one, other] = elements_of(pairing, pair, pairs);
        const auto row = angles.cos.size(0) == 1 ? 0 : b;
        const auto first = from[b][h].select(1, one), second = from[b][h].select(1, other);
        const auto to_first = given[b][h].select(1, one), to_second = given[b][h].select(1, other);
        of_cos[row][0].select(1, pair).add_(first * to_first + second * to_second);
        of_sin[row][0].select(1, pair).add_(first * to_second - second * to_first);
      }
    }
  }
  return {of_x, of_cos, of_sin};
}

TEST(OwnRotaryAngles, GetGradients) {
  torch::manual_seed(moved(5));
  for (const auto pairing : {RotaryPairing::half_split, RotaryPairing::interleaved}) {
    for (const int64_t rotary_dim : {4, 8}) {
      RotaryEmbedding rotary(RotaryEmbeddingOptions(D).rotary_dim(rotary_dim).pairing(pairing));
      for (const auto device : devices()) {
        for (const auto dtype : kDtypes) {
          for (const auto batch : {int64_t{1}, B}) {
            for (const int64_t length : {L, int64_t{1}, int64_t{0}}) {
              const auto like = at::device(device).dtype(dtype);
              const auto x = uniform({B, H, length, D}, like).requires_grad_();
              auto angles = drawn_angles(batch, length, rotary_dim / 2, like);
              const std::vector<at::Tensor> leaves = {x, angles.cos.requires_grad_(),
                                                      angles.sin.requires_grad_()};
              const auto of_output = uniform({B, H, length, D}, like);
              const auto gradients =
                  torch::autograd::grad({rotary->rotate(x, angles)}, leaves, {of_output});
              for (const auto& gradient : gradients) EXPECT_EQ(gradient.scalar_type(), dtype);
              // Up to 2 B H products, each rounded.
              EXPECT_TRUE(are_close(gradients, gradients_of(x, angles, pairing, of_output),
                                    4 * B * H * rounding(dtype)));
            }
          }
        }
      }
    }
  }
}

/// One of cos, sin and x may require grad without the others.
TEST(OwnRotaryAngles, GetGradientsAlone) {
  torch::manual_seed(moved(6));
  RotaryEmbedding rotary(D);
  const auto x = uniform({B, H, L, D}, at::kDouble), of_output = uniform({B, H, L, D}, at::kDouble);
  const auto angles = drawn_angles(1, L, D / 2, at::kDouble);
  const auto expected = gradients_of(x, angles, RotaryPairing::half_split, of_output);
  const std::vector<at::Tensor> inputs = {x, angles.cos, angles.sin};
  for (size_t i = 0; i < 3; ++i) {
    auto own = inputs;
    own[i] = own[i].clone().requires_grad_();
    const auto output = rotary->rotate(own[0], {own[1], own[2]});
    EXPECT_TRUE(
        is_close(torch::autograd::grad({output}, {own[i]}, {of_output})[0], expected[i], 1e-14));
  }
  const auto without = rotary->rotate(x, angles);
  EXPECT_FALSE(without.requires_grad());
  const at::NoGradGuard no_grad;
  const RotaryAngles learned{angles.cos.clone().requires_grad_(), angles.sin};
  EXPECT_TRUE(is_close(rotary->rotate(x, learned), without, 1e-15));
}

/// The second derivative along one direction, against differences of the first.
TEST(OwnRotaryAngles, HaveSecondDerivatives) {
  torch::manual_seed(moved(7));
  RotaryEmbedding rotary(RotaryEmbeddingOptions(D).rotary_dim(6));
  std::vector<at::Tensor> inputs = {uniform({B, H, L, D}, at::kDouble),
                                    uniform({1, 1, L, 3}, at::kDouble),
                                    uniform({1, 1, L, 3}, at::kDouble)};
  std::vector<at::Tensor> direction;
  for (auto& input : inputs) {
    direction.push_back(uniform(input.sizes(), at::kDouble));
    input.requires_grad_();
  }
  const auto gradients = [&](const std::vector<at::Tensor>& points, bool create_graph) {
    const auto loss = rotary->rotate(points[0], {points[1], points[2]}).pow(3).sum();
    return torch::autograd::grad({loss}, points, {}, create_graph, create_graph);
  };
  const auto first = gradients(inputs, true);
  auto along = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < 3; ++i) along = along + (first[i] * direction[i]).sum();
  const auto second = torch::autograd::grad({along}, inputs);
  constexpr double kStep = 1e-5;
  const auto moved_by = [&](double step) {
    std::vector<at::Tensor> points;
    for (size_t i = 0; i < 3; ++i) {
      points.push_back((inputs[i].detach() + step * direction[i]).requires_grad_());
    }
    return gradients(points, false);
  };
  const auto after = moved_by(kStep), before = moved_by(-kStep);
  std::vector<at::Tensor> differences;
  for (size_t i = 0; i < 3; ++i) differences.push_back((after[i] - before[i]) / (2 * kStep));
  EXPECT_TRUE(are_alike(second, differences, 1e-7));
}

TEST(OwnRotaryAngles, AreRefusedByName) {
  RotaryEmbedding rotary(D);
  const auto x = at::ones({B, H, L, D});
  const auto error = [&](const at::Tensor& cos, const at::Tensor& sin) {
    return value_error([&] { rotary->rotate(x, {cos, sin}); });
  };
  const auto good = at::ones({1, 1, L, 4});
  EXPECT_EQ(error({}, good), "RotaryEmbedding: cos must be defined");
  EXPECT_EQ(error(good, {}), "RotaryEmbedding: sin must be defined");
  EXPECT_EQ(error(good.to(at::kLong), good), "RotaryEmbedding: cos dtype (Long) must be floating");
  EXPECT_EQ(error(good, good.to(at::kComplexFloat)),
            "RotaryEmbedding: sin dtype (ComplexFloat) must be floating");
  const std::string wanted = "RotaryEmbedding: angles cos and sin must be [1 or B, 1, L, 4]; cos ";
  EXPECT_EQ(error(good[0], good[0]), wanted + "[1, 5, 4], sin [1, 5, 4]");
  const auto whole = at::ones({1, 1, L, D});
  EXPECT_EQ(error(whole, whole), wanted + "[1, 1, 5, 8], sin [1, 1, 5, 8]");
  EXPECT_EQ(error(good, good.expand({B, 1, L, 4})), wanted + "[1, 1, 5, 4], sin [2, 1, 5, 4]");
  EXPECT_EQ(error(good.expand({1, H, L, 4}), good.expand({1, H, L, 4})),
            wanted + "[1, 3, 5, 4], sin [1, 3, 5, 4]");
  const auto shorter = good.narrow(2, 0, 4);
  EXPECT_EQ(error(shorter, shorter),
            "RotaryEmbedding: x dim 2 (5) must equal the number of positions (4)");
  const auto more = at::ones({3, 1, L, 4});
  EXPECT_EQ(error(more, more), "RotaryEmbedding: x dim 0 (2) must equal positions dim 0 (3)");
}

}  // namespace
}  // namespace heed::test::rotary_axes
