// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/rotary_embedding.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/modules/layers/turned_pairs.h"

/// Rotations by angles of a caller's own.

namespace heed::test::rotary_axes {
namespace {

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
