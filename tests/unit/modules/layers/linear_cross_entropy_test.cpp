// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/_make_dual.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/_unpack_dual.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <heed/linear_cross_entropy.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "cpu/capability.h"
#include "modules/layers/loss_pass.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/modules/layers/linear_cross_entropy_cases.h"

namespace heed::test::of_linear_cross_entropy {
namespace {

std::vector<LinearCrossEntropyOptions> every_option(int64_t classes) {
  std::vector<LinearCrossEntropyOptions> all;
  for (int64_t bits = 0; bits < 32; ++bits) {
    for (const auto reduction : {LossReduction::mean, LossReduction::sum, LossReduction::none}) {
      LinearCrossEntropyOptions options;
      options.reduction(reduction);
      if ((bits & 1) != 0) options.bias(at::randn({classes}, at::kDouble));
      if ((bits & 2) != 0) options.class_weight(at::rand({classes}, at::kDouble) + 0.1);
      if ((bits & 4) != 0) options.label_smoothing((bits & 1) != 0 ? 1.0 : 0.1);
      if ((bits & 8) != 0) options.z_loss(0.02);
      if ((bits & 16) != 0) options.softcap(1.5);
      all.push_back(options);
    }
  }
  return all;
}

std::string described(const LinearCrossEntropyOptions& o) {
  return c10::str("bias ", o.bias().has_value(), ", weights ", o.class_weight().has_value(),
                  ", smoothing ", o.label_smoothing(), ", z ", o.z_loss(), ", softcap ",
                  o.softcap().value_or(0.0), ", reduction ", static_cast<int>(o.reduction()));
}

TEST(LinearCrossEntropy, IsItsDefinitionWithEveryOption) {
  torch::manual_seed(moved(1));
  for (const bool some_ignored : {false, true}) {
    auto c = make_case({7, 21, 5}, some_ignored);
    for (const auto& options : every_option(21)) {
      SCOPED_TRACE(described(options));
      c.options = options;
      expect_definition(c, at::kDouble, tolerance_of(at::kDouble));
      expect_definition(c, at::kFloat, tolerance_of(at::kFloat));
    }
  }
}

TEST(LinearCrossEntropy, TakesEveryDtypeOnEveryDevice) {
  torch::manual_seed(moved(2));
  for (const auto& device : devices()) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const bool some_ignored : {false, true}) {
        auto c = make_case({9, 37, 8}, some_ignored);
        for (const auto& options : every_option(37)) {
          SCOPED_TRACE(c10::str(dtype, " ", device, " ", described(options)));
          c.options = options;
          expect_definition(c, at::device(device).dtype(dtype), tolerance_of(dtype));
        }
      }
    }
  }
}

TEST(LinearCrossEntropy, TakesEverySize) {
  torch::manual_seed(moved(3));
  for (const auto& size :
       {Size{1, 1, 1}, Size{5, 1, 3}, Size{1, 300, 2}, Size{40, 2, 1}, Size{33, 65, 17},
        Size{3, 1000, 129}, Size{130, 16, 64}, Size{600, 640, 160}}) {
    for (const bool some_ignored : {false, true}) {
      SCOPED_TRACE(c10::str(size.rows, " ", size.classes, " ", size.width));
      auto c = make_case(size, some_ignored && size.rows > 1);
      expect_definition(c, at::kFloat, 8 * tolerance_of(at::kFloat));
      c.options.bias(at::randn({size.classes}, at::kDouble)).label_smoothing(0.1);
      expect_definition(c, at::kDouble, 8 * tolerance_of(at::kDouble));
    }
  }
}

/// Rows are computed in blocks, the last of which may be smaller.
TEST(LinearCrossEntropy, IsTheSameInBlocksOfAnySize) {
  torch::manual_seed(moved(4));
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto reduction : {LossReduction::mean, LossReduction::none}) {
      for (const bool some_ignored : {false, true}) {
        auto c = make_case({11, 24, 6}, some_ignored);
        c.options.bias(at::randn({24}, at::kDouble)).z_loss(0.1).reduction(reduction);
        for (const int64_t rows : {1, 2, 4, 5, 10, 11, 12}) {
          SCOPED_TRACE(c10::str(dtype, ", blocks of ", rows));
          const detail::ScopedLossBlocks blocks(rows * 24 * c10::elementSize(dtype));
          expect_definition(c, dtype, tolerance_of(dtype));
        }
      }
    }
  }
}

/// With so many classes, some processors compute both gradients a block of classes at a time.
TEST(LinearCrossEntropy, TakesManyClasses) {
  torch::manual_seed(moved(20));
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool some_ignored : {false, true}) {
      for (const auto reduction : {LossReduction::mean, LossReduction::none}) {
        SCOPED_TRACE(c10::str(dtype, " ", some_ignored, " ", static_cast<int>(reduction)));
        auto c = make_case({200, 6200, 32}, some_ignored);
        c.options.bias(at::randn({6200}, at::kDouble)).reduction(reduction);
        const detail::ScopedLossBlocks blocks(100 * 6200 * c10::elementSize(dtype));
        expect_definition(c, dtype, 8 * tolerance_of(dtype));
      }
    }
  }
}

/// Numbers whose sign is a bit of the tensor lie in memory with the other sign.
TEST(LinearCrossEntropy, TakesManyClassesOfNegatedTensors) {
  torch::manual_seed(moved(21));
  const auto c = converted(make_case({200, 6200, 32}, false), at::kFloat);
  const auto expected = torch::autograd::grad({loss(c)}, {c.x, c.weight});
  for (const bool of_weight : {false, true}) {
    auto own = c;
    auto& negated = of_weight ? own.weight : own.x;
    negated = at::_neg_view(-negated.detach()).requires_grad_();
    ASSERT_TRUE(negated.is_neg());
    const auto found = torch::autograd::grad({loss(own)}, {own.x, own.weight});
    EXPECT_TRUE(are_alike(found, expected, 8 * tolerance_of(at::kFloat)));
  }
}

TEST(LinearCrossEntropy, IsTheSameInEveryInstructionSet) {
  torch::manual_seed(moved(5));
  auto sets = detail::instruction_sets();
  sets.push_back(&detail::no_kernels());
  for (const auto* set : sets) {
    const detail::ScopedInstructionSet scope(*set);
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      auto c = make_case({6, 43, 8}, /*some_ignored=*/true);
      for (const auto& options : every_option(43)) {
        SCOPED_TRACE(c10::str(set->name, " ", dtype, " ", described(options)));
        c.options = options;
        expect_definition(c, dtype, tolerance_of(dtype));
      }
    }
  }
}

TEST(LinearCrossEntropy, IsTorchsCrossEntropyOfTheScores) {
  torch::manual_seed(moved(6));
  for (const auto& options : every_option(19)) {
    if (options.z_loss() != 0.0 || options.softcap()) continue;
    auto c = make_case({8, 19, 4}, /*some_ignored=*/true);
    c.options = options;
    const auto own = converted(c, at::kDouble);
    const auto& o = own.options;
    auto scores = own.x.matmul(own.weight.t());
    if (o.bias()) scores = scores + *o.bias();
    const auto reduction = o.reduction() == LossReduction::mean  ? at::Reduction::Mean
                           : o.reduction() == LossReduction::sum ? at::Reduction::Sum
                                                                 : at::Reduction::None;
    const auto expected = at::cross_entropy_loss(scores, own.targets, o.class_weight(), reduction,
                                                 -100, o.label_smoothing());
    EXPECT_TRUE(are_alike(results(loss(own), leaves_of(own)), results(expected, leaves_of(own)),
                          tolerance_of(at::kDouble)))
        << described(options);
  }
}

/// (f(x + h) - f(x - h)) / 2 h of each element, in float64.
TEST(LinearCrossEntropy, HasTheGradientsOfDifferences) {
  torch::manual_seed(moved(7));
  constexpr double kStep = 1e-5;
  for (const auto& options : every_option(5)) {
    auto c = make_case({4, 5, 3}, /*some_ignored=*/true);
    c.options = options;
    const auto own = converted(c, at::kDouble);
    const auto value = [&] { return loss(own).detach().sum().item<double>(); };
    const auto gradients = torch::autograd::grad({loss(own).sum()}, leaves_of(own));
    for (size_t i = 0; i < gradients.size(); ++i) {
      auto elements = leaves_of(own)[i].detach().view(-1);
      auto expected = at::zeros_like(elements);
      for (int64_t k = 0; k < elements.numel(); ++k) {
        const auto before = elements[k].item<double>();
        elements[k] = before + kStep;
        const auto above = value();
        elements[k] = before - kStep;
        expected[k] = (above - value()) / (2 * kStep);
        elements[k] = before;
      }
      EXPECT_TRUE(are_alike({gradients[i].flatten()}, {expected}, 1e-7)) << described(options);
    }
  }
}

TEST(LinearCrossEntropy, HasSecondDerivatives) {
  torch::manual_seed(moved(8));
  for (const auto& options : every_option(6)) {
    auto c = make_case({5, 6, 3}, /*some_ignored=*/true);
    c.options = options;
    const auto derivatives = [&](const auto& function) {
      const auto own = converted(c, at::kDouble);
      const auto leaves = leaves_of(own);
      const auto first = torch::autograd::grad({function(own).square().sum()}, leaves, {},
                                               /*retain_graph=*/true, /*create_graph=*/true);
      auto sum = first[0].square().sum();
      for (size_t i = 1; i < first.size(); ++i) sum = sum + first[i].square().sum();
      return torch::autograd::grad({sum}, leaves);
    };
    EXPECT_TRUE(are_alike(derivatives(loss), derivatives(reference), 1e-10)) << described(options);
  }
}

/// An input that is x and weight has a gradient for each.
TEST(LinearCrossEntropy, TakesATensorTwice) {
  torch::manual_seed(moved(9));
  const auto both = at::randn({6, 4}, at::kDouble).requires_grad_();
  const auto targets = at::randint(6, {6}, at::kLong);
  const auto expected = reference({both, both, targets, {}});
  for (const bool create_graph : {false, true}) {
    const auto found = linear_cross_entropy(both, both, targets);
    EXPECT_TRUE(
        are_alike(torch::autograd::grad({found}, {both}, {}, /*retain_graph=*/true, create_graph),
                  torch::autograd::grad({expected}, {both}, {}, /*retain_graph=*/true),
                  tolerance_of(at::kDouble)));
  }
}

/// The head of a model whose weight is also its embedding.
TEST(LinearCrossEntropy, TakesATiedWeight) {
  torch::manual_seed(moved(10));
  const auto weight = at::randn({12, 6}, at::kDouble).requires_grad_();
  const auto tokens = at::randint(12, {9}, at::kLong), targets = at::randint(12, {9}, at::kLong);
  const auto gradient = [&](const auto& function) {
    const auto x = at::embedding(weight, tokens).sin();
    return torch::autograd::grad({function({x, weight, targets, {}})}, {weight});
  };
  EXPECT_TRUE(are_alike(gradient(loss), gradient(reference), tolerance_of(at::kDouble)));
}

/// The first backward pass takes what the forward pass has computed; the others compute it again.
TEST(LinearCrossEntropy, IsDifferentiatedAgainAndAgain) {
  torch::manual_seed(moved(11));
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto reduction : {LossReduction::mean, LossReduction::none}) {
      auto c = make_case({7, 12, 5}, /*some_ignored=*/true);
      c.options.reduction(reduction);
      const auto own = converted(c, dtype);
      const auto leaves = leaves_of(own);
      const auto found = loss(own);
      const auto of_loss = at::full_like(found, 0.5);
      const auto first = torch::autograd::grad({found}, leaves, {of_loss}, /*retain_graph=*/true);
      for (int64_t i = 0; i < 2; ++i) {
        const auto again = torch::autograd::grad({found}, leaves, {of_loss}, /*retain_graph=*/true);
        EXPECT_TRUE(are_alike(again, first, unit_roundoff(dtype))) << dtype;
      }
      // One of them alone.
      const auto of_weight =
          torch::autograd::grad({found}, {own.weight}, {of_loss}, /*retain_graph=*/true);
      EXPECT_TRUE(are_alike(of_weight, {first[1]}, unit_roundoff(dtype)));
      for (int64_t i = 0; i < 3; ++i) found.backward(of_loss, /*retain_graph=*/true);
      EXPECT_TRUE(are_alike({own.weight.grad()}, {3 * first[1]}, 8 * unit_roundoff(dtype)));
      found.backward(of_loss);
      EXPECT_THROW(found.backward(of_loss), c10::Error);
    }
  }
}

TEST(LinearCrossEntropy, AccumulatesGradients) {
  torch::manual_seed(moved(12));
  const auto one = converted(make_case({5, 9, 4}), at::kDouble);
  auto other = make_case({5, 9, 4});
  other.weight = one.weight;
  for (const auto& c : {one, other}) (loss(c) * 0.5).backward();
  const auto expected =
      torch::autograd::grad({(reference(one) + reference(other)) * 0.5}, {one.weight});
  EXPECT_TRUE(are_alike({one.weight.grad()}, expected, tolerance_of(at::kDouble)));
}

/// A gradient of the loss that is expanded or negated.
TEST(LinearCrossEntropy, TakesAnyGradient) {
  torch::manual_seed(moved(18));
  auto c = make_case({6, 9, 4}, /*some_ignored=*/true);
  c.options.reduction(LossReduction::none);
  const auto own = converted(c, at::kDouble);
  for (const auto& of_loss : {at::full({1}, 2.0, at::kDouble).expand({6}),
                              at::full({6}, -2.0, at::kDouble)._neg_view()}) {
    EXPECT_TRUE(are_alike(torch::autograd::grad({loss(own)}, leaves_of(own), {of_loss}),
                          torch::autograd::grad({reference(own)}, leaves_of(own), {of_loss}),
                          tolerance_of(at::kDouble)));
  }
}

TEST(LinearCrossEntropy, ComputesOnlyTheGradientsThatAreAskedFor) {
  const auto c = make_case({5, 6, 3});
  for (const bool of_x : {false, true}) {
    auto own = converted(c, at::kDouble);
    (of_x ? own.weight : own.x).requires_grad_(false);
    const auto leaf = of_x ? own.x : own.weight;
    EXPECT_TRUE(are_alike(torch::autograd::grad({loss(own)}, {leaf}),
                          torch::autograd::grad({reference(own)}, {leaf}),
                          tolerance_of(at::kDouble)));
  }
  EXPECT_FALSE(loss(c).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(loss(converted(c, at::kDouble)).requires_grad());
  const c10::InferenceMode inference;
  EXPECT_TRUE(is_close(loss(make_case({5, 6, 3})), at::zeros({}), 100.0));
}

TEST(LinearCrossEntropy, NoticesChangesInPlace) {
  for (int64_t changed = 0; changed < 3; ++changed) {
    const auto own = converted(make_case({5, 6, 3}), at::kFloat);
    const auto found = loss(own);
    {
      const at::NoGradGuard no_grad;
      const at::Tensor tensors[] = {own.x, own.weight, own.targets};
      tensors[changed].zero_();
    }
    EXPECT_THROW(found.backward(), c10::Error);
  }
}

TEST(LinearCrossEntropy, PropagatesTangents) {
  torch::manual_seed(moved(19));
  auto c = make_case({5, 7, 3}, /*some_ignored=*/true);
  c.options.softcap(2.0).z_loss(0.1);
  const auto along = at::randn(c.x.sizes(), at::kDouble);
  const auto own = converted(c, at::kDouble);
  const auto expected =
      (torch::autograd::grad({reference(own)}, {own.x})[0] * along).sum().item<double>();
  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  c.x = at::_make_dual(c.x, along, static_cast<int64_t>(level));
  const auto tangent =
      std::get<1>(at::_unpack_dual(loss(c), static_cast<int64_t>(level))).item<double>();
  torch::autograd::ForwardADLevel::release_idx(level);
  EXPECT_NEAR(tangent, expected, 1e-12);
}

}  // namespace
}  // namespace heed::test::of_linear_cross_entropy
