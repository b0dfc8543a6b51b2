#include <ATen/TensorOperators.h>
#include <ATen/ops/_make_dual.h>
#include <ATen/ops/_unpack_dual.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <heed/autocast.h>
#include <heed/linear_cross_entropy.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cpu/capability.h"
#include "modules/layers/loss_pass.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/layouts.h"
#include "support/memory.h"
#include "support/seeds.h"

namespace heed::test::of_linear_cross_entropy {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  at::Tensor x, weight, targets;
  LinearCrossEntropyOptions options;
};

at::Tensor loss(const Case& c) { return linear_cross_entropy(c.x, c.weight, c.targets, c.options); }

/// The tensors that require grad.
std::vector<at::Tensor> leaves_of(const Case& c) {
  std::vector<at::Tensor> leaves = {c.x, c.weight};
  if (c.options.bias()) leaves.push_back(*c.options.bias());
  return leaves;
}

/// The case in another dtype or on another device, with leaves of its own.
Case converted(const Case& c, const at::TensorOptions& to) {
  const auto leaf = [&](const at::Tensor& tensor) {
    return tensor.detach().to(to.device()).to(to.dtype(), false, /*copy=*/true).requires_grad_();
  };
  Case own{leaf(c.x), leaf(c.weight), c.targets.to(to.device()), c.options};
  if (c.options.bias()) own.options.bias(leaf(*c.options.bias()));
  if (const auto& given = c.options.class_weight()) {
    own.options.class_weight(given->to(to.device()).to(to.dtype()));
  }
  return own;
}

/// The definition, row by row, in float64.
at::Tensor reference(const Case& c) {
  const auto& o = c.options;
  const auto classes = c.weight.size(0);
  const auto class_weight = o.class_weight().value_or(at::full({classes}, 1.0, at::kDouble));
  std::vector<at::Tensor> losses, squares;
  double weights = 0.0, rows = 0.0;
  for (int64_t i = 0; i < c.targets.size(0); ++i) {
    const auto y = c.targets[i].item<int64_t>();
    if (y == o.ignore_index()) {
      losses.push_back(at::zeros({}, at::kDouble));
      squares.push_back(losses.back());
      continue;
    }
    auto s = c.weight.mv(c.x[i]);
    if (o.bias()) s = s + *o.bias();
    if (o.softcap()) s = at::tanh(s / *o.softcap()) * *o.softcap();
    const auto lse = s.logsumexp(0);
    auto row = (1.0 - o.label_smoothing()) * class_weight[y] * (lse - s[y]);
    if (o.label_smoothing() > 0.0) {
      const auto sum = ((lse - s) * class_weight).sum();
      row = row + o.label_smoothing() / static_cast<double>(classes) * sum;
    }
    losses.push_back(row);
    squares.push_back(o.z_loss() * lse * lse);
    weights += class_weight[y].item<double>();
    rows += 1.0;
  }
  const auto all = at::stack(losses), z = at::stack(squares);
  if (o.reduction() == LossReduction::none) return all + z;
  if (o.reduction() == LossReduction::sum) return (all + z).sum();
  return rows == 0.0 ? all.sum() : all.sum() / weights + z.sum() / rows;
}

struct Size {
  int64_t rows, classes, width;
};

/// Every third row is ignored where `some_ignored`.
Case make_case(const Size& size, bool some_ignored = false) {
  Case c;
  c.x = at::randn({size.rows, size.width}, at::kDouble);
  c.weight = at::randn({size.classes, size.width}, at::kDouble) * 0.5;
  c.targets = at::randint(size.classes, {size.rows}, at::kLong);
  if (some_ignored) c.targets.slice(0, 0, {}, 3).fill_(-100);
  return c;
}

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

/// The loss and its gradients, from one that differs between rows.
std::vector<at::Tensor> results(const at::Tensor& loss, const std::vector<at::Tensor>& leaves) {
  const auto of_loss =
      loss.dim() == 0 ? at::full_like(loss, 1.5)
                      : at::arange(1.0, 1.0 + static_cast<double>(loss.numel()), loss.options());
  auto found = torch::autograd::grad({loss}, leaves, {of_loss}, /*retain_graph=*/true);
  found.push_back(loss.detach());
  return found;
}

/// Compares a case, in the dtype and on the device of `to`, with the reference.
void expect_definition(const Case& c, const at::TensorOptions& to, double tolerance) {
  const auto own = converted(c, to), wide = converted(own, at::TensorOptions(at::kDouble));
  const auto found = results(loss(own), leaves_of(own));
  const auto expected = results(reference(wide), leaves_of(wide));
  EXPECT_EQ(found.back().scalar_type(),
            own.x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(are_alike({found[i].cpu()}, {expected[i]}, tolerance)) << i;
  }
  for (size_t i = 0; i + 1 < found.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), own.x.scalar_type());
  }
}

double tolerance_of(at::ScalarType dtype) {
  // In half types the scores, which are about 3, are rounded, and then the probabilities.
  return (dtype == at::kDouble || dtype == at::kFloat ? 128 : 16) * unit_roundoff(dtype);
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

/// Gradients that are divided by the number of rows and then scaled would be 0 in float16.
TEST(LinearCrossEntropy, KeepsSmallGradientsOfFloat16) {
  torch::manual_seed(moved(13));
  auto c = make_case({64, 4000, 8});
  c.weight.mul_(0.1);
  const auto own = converted(c, at::kHalf), wide = converted(own, at::kDouble);
  constexpr double kScale = 65536;
  const auto found = torch::autograd::grad({loss(own) * kScale}, leaves_of(own));
  const auto expected = torch::autograd::grad({reference(wide) * kScale}, leaves_of(wide));
  EXPECT_TRUE(are_alike(found, expected, tolerance_of(at::kHalf)));
  // Classes that are no target have the smallest gradients.
  auto is_target = at::zeros({4000}, at::kBool);
  is_target.index_fill_(0, own.targets, true);
  const auto others = is_target.logical_not().nonzero().squeeze(1);
  EXPECT_TRUE(are_alike({found[1].index_select(0, others)}, {expected[1].index_select(0, others)},
                        16 * tolerance_of(at::kHalf)));
}

TEST(LinearCrossEntropy, IsZeroWhereAllRowsAreIgnored) {
  for (const auto& device : devices()) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const auto rows : {0, 4}) {
        for (const auto reduction :
             {LossReduction::mean, LossReduction::sum, LossReduction::none}) {
          Case c{at::full({rows, 3}, NAN), at::ones({5, 3}), at::full({rows}, 7, at::kLong), {}};
          c.options.ignore_index(7).z_loss(1.0).label_smoothing(0.5).reduction(reduction);
          c.options.bias(at::ones({5})).class_weight(at::ones({5}));
          const auto own = converted(c, at::device(device).dtype(dtype));
          const auto found = loss(own);
          EXPECT_EQ(found.dim(), reduction == LossReduction::none ? 1 : 0);
          EXPECT_EQ(found.sum().item<double>(), 0.0);
          for (const auto& gradient : torch::autograd::grad({found.sum()}, leaves_of(own))) {
            EXPECT_EQ(gradient.ne(0).sum().item<int64_t>(), 0);
          }
        }
      }
    }
  }
}

TEST(LinearCrossEntropy, NeverReadsIgnoredRows) {
  torch::manual_seed(moved(14));
  for (const auto& device : devices()) {
    auto c = make_case({6, 7, 4}, /*some_ignored=*/true);
    c.options.label_smoothing(0.1);
    const auto clean = converted(c, at::device(device).dtype(at::kFloat));
    c.x.slice(0, 0, {}, 3).fill_(NAN);
    const auto own = converted(c, at::device(device).dtype(at::kFloat));
    EXPECT_TRUE(
        are_equal(results(loss(own), leaves_of(own)), results(loss(clean), leaves_of(clean))));
  }
}

/// A target that is ignored may be a class.
TEST(LinearCrossEntropy, IgnoresAClass) {
  torch::manual_seed(moved(15));
  auto c = make_case({20, 4, 3});
  c.options.ignore_index(2);
  expect_definition(c, at::kDouble, tolerance_of(at::kDouble));
}

TEST(LinearCrossEntropy, TakesScoresOfAnySize) {
  torch::manual_seed(moved(16));
  for (const double scale : {1e3, 1e30}) {
    auto c = make_case({6, 17, 4});
    c.weight.mul_(scale);
    const auto own = converted(c, at::kFloat), wide = converted(own, at::kDouble);
    EXPECT_TRUE(are_alike({loss(own).detach()}, {reference(wide).detach()}, 1e-5)) << scale;
    EXPECT_TRUE(is_finite(torch::autograd::grad({loss(own)}, {own.x})[0]));
  }
  // A class that is impossible, and one that is certain.
  auto c = make_case({4, 17, 3});
  auto bias = at::zeros({17}, at::kDouble);
  bias[3] = -kInfinity;
  bias[5] = 1e4;
  c.options.bias(bias);
  c.targets.fill_(5);
  expect_definition(c, at::kFloat, tolerance_of(at::kFloat));
  c.targets.fill_(3);
  EXPECT_EQ(loss(converted(c, at::kFloat)).item<double>(), kInfinity);
  c.x[1][1] = NAN;
  EXPECT_TRUE(std::isnan(loss(converted(c, at::kFloat)).item<double>()));
}

/// torch's cross_entropy gives NaN too.
TEST(LinearCrossEntropy, IsNanWhereTheWeightsOfTheTargetsAreZero) {
  auto c = make_case({3, 2, 2});
  c.targets.zero_();
  c.options.class_weight(at::tensor({0.0, 1.0}, at::kDouble));
  EXPECT_TRUE(std::isnan(loss(c).item<double>()));
}

TEST(LinearCrossEntropy, TakesAnyLayout) {
  torch::manual_seed(moved(17));
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (int64_t layout = 0; layout < kLayouts; ++layout) {
      SCOPED_TRACE(c10::str(dtype, " layout ", layout));
      auto c = make_case({12, 18, 6}, /*some_ignored=*/layout % 2 == 0);
      c.x = lay_out(c.x.to(dtype), layout);
      c.weight = lay_out(c.weight.to(dtype), layout);
      c.options.bias(lay_out(at::randn({18}).to(dtype), kEverySecond))
          .class_weight(lay_out(at::rand({18}).to(dtype), kEverySecond));
      c.targets = lay_out(c.targets, layout == kRepeatedElement ? kContiguous : kEverySecond);
      const auto wide = converted(c, at::kDouble);
      EXPECT_TRUE(is_close(loss(c), reference(wide).detach(), tolerance_of(dtype)));
      for (auto* tensor : {&c.x, &c.weight}) *tensor = tensor->detach().requires_grad_();
      const auto found = torch::autograd::grad({loss(c)}, {c.x, c.weight});
      const auto expected = torch::autograd::grad({reference(wide)}, {wide.x, wide.weight});
      // Where all classes have the same weights, the gradient of x is 0.
      const auto largest = at::maximum(expected[0].abs().max(), expected[1].abs().max());
      const auto close = tolerance_of(dtype) * largest.item<double>();
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(is_close(found[i], expected[i], close)) << i;
      }
      EXPECT_TRUE(found[1].is_contiguous());
    }
  }
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

/// Under autocast the loss is that of inputs in bfloat16.
TEST(LinearCrossEntropy, IsConvertedByAutocast) {
  torch::manual_seed(moved(20));
  auto c = make_case({9, 14, 8}, /*some_ignored=*/true);
  c.options.bias(at::randn({14}, at::kDouble)).class_weight(at::rand({14}, at::kDouble));
  const auto own = converted(c, at::kFloat);
  at::Tensor found;
  {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    found = loss(own);
  }
  auto rounded = converted(own, at::kBFloat16);
  rounded.options.class_weight(own.options.class_weight());
  EXPECT_EQ(found.scalar_type(), at::kFloat);
  EXPECT_TRUE(is_close(found, loss(rounded), tolerance_of(at::kBFloat16)));
  const auto gradients = torch::autograd::grad({found}, leaves_of(own));
  const auto expected = torch::autograd::grad({loss(rounded)}, leaves_of(rounded));
  EXPECT_TRUE(are_alike(gradients, expected, tolerance_of(at::kBFloat16)));
  for (const auto& gradient : gradients) EXPECT_EQ(gradient.scalar_type(), at::kFloat);
  const Autocast autocast(at::kCPU, at::kBFloat16);
  EXPECT_EQ(loss(c).scalar_type(), at::kDouble);
}

TEST(LinearCrossEntropy, GivesShapesOfMetaTensors) {
  for (const auto reduction : {LossReduction::mean, LossReduction::none}) {
    auto c = make_case({5, 6, 3});
    c.options.reduction(reduction);
    const auto own = converted(c, at::device(at::kMeta).dtype(at::kFloat));
    const auto found = loss(own);
    EXPECT_TRUE(found.is_meta());
    EXPECT_EQ(found.sizes(), loss(c).sizes());
    EXPECT_EQ(torch::autograd::grad({found.sum()}, {own.weight})[0].sizes(), own.weight.sizes());
  }
}

/// Inputs, gradients and 64 MB, where the scores would take 300 MB; in half types also the
/// weight's gradient in float32.
TEST(LinearCrossEntropy, NeverHoldsTheScores) {
  constexpr int64_t kRows = 1536, kClasses = 49152, kWidth = 8, kAllowed = int64_t{64} << 20;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto reduction : {LossReduction::mean, LossReduction::none}) {
      const auto x = at::zeros({kRows, kWidth}, dtype).requires_grad_();
      const auto weight = at::zeros({kClasses, kWidth}, dtype).requires_grad_();
      const auto targets = at::zeros({kRows}, at::kLong);
      const auto options = LinearCrossEntropyOptions().reduction(reduction);
      auto gradients = static_cast<int64_t>(x.nbytes() + weight.nbytes());
      if (dtype != at::kFloat) gradients += weight.numel() * static_cast<int64_t>(sizeof(float));
      const AllocationCounter counter;
      linear_cross_entropy(x, weight, targets, options).sum().backward();
      EXPECT_LE(counter.peak(), gradients + kAllowed) << dtype;
      EXPECT_TRUE(weight.grad().defined());
    }
  }
}

std::string error(const Case& c) {
  return value_error([&] { loss(c); });
}

TEST(LinearCrossEntropy, NamesWrongArguments) {
  const Case good{at::zeros({3, 4}), at::zeros({5, 4}), at::tensor({0, -100, 4}, at::kLong), {}};
  const auto with = [&](const auto& change) {
    auto c = good;
    change(c);
    return error(c);
  };
  EXPECT_EQ(with([](Case& c) { c.x = at::Tensor(); }), "linear_cross_entropy: x must be defined");
  EXPECT_EQ(with([](Case& c) {
              c.x = at::zeros({1, 3, 4});
            }),
            "linear_cross_entropy: x rank (3) must equal 2; x [1, 3, 4]");
  EXPECT_EQ(with([](Case& c) { c.x = c.x.to(at::kLong); }),
            "linear_cross_entropy: x dtype (Long) must be Float, Double, BFloat16 or Half");
  EXPECT_EQ(with([](Case& c) {
              c.weight = at::zeros({5, 3});
            }),
            "linear_cross_entropy: weight dim 1 (3) must equal x dim 1 (4); x [3, 4], weight "
            "[5, 3]");
  EXPECT_EQ(with([](Case& c) {
              c.weight = at::zeros({0, 4});
            }),
            "linear_cross_entropy: weight dim 0 (0) must be at least 1; weight [0, 4]");
  EXPECT_EQ(with([](Case& c) { c.weight = at::zeros({4}); }),
            "linear_cross_entropy: weight rank (1) must equal 2; weight [4]");
  EXPECT_EQ(with([](Case& c) { c.weight = c.weight.to(at::kDouble); }),
            "linear_cross_entropy: weight dtype (Double) must equal x dtype (Float)");
  EXPECT_EQ(with([](Case& c) { c.weight = c.weight.to(at::kMeta); }),
            "linear_cross_entropy: weight device (meta) must equal x device (cpu)");
  EXPECT_EQ(with([](Case& c) { c.targets = c.targets.to(at::kInt); }),
            "linear_cross_entropy: targets dtype (Int) must be Long");
  EXPECT_EQ(with([](Case& c) { c.targets = c.targets.to(at::kFloat); }),
            "linear_cross_entropy: targets dtype (Float) must be Long");
  EXPECT_EQ(with([](Case& c) { c.targets = c.targets.unsqueeze(0); }),
            "linear_cross_entropy: targets rank (2) must equal 1; targets [1, 3]");
  EXPECT_EQ(with([](Case& c) { c.targets = at::zeros({2}, at::kLong); }),
            "linear_cross_entropy: targets dim 0 (2) must equal x dim 0 (3)");
  EXPECT_EQ(with([](Case& c) { c.targets = c.targets.to(at::kMeta); }),
            "linear_cross_entropy: targets device (meta) must equal x device (cpu)");
  for (const int64_t wrong : {int64_t{5}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(with([&](Case& c) {
                c.targets = at::tensor(std::vector<int64_t>{0, -100, wrong});
              }),
              c10::str("linear_cross_entropy: targets[2] (", wrong,
                       ") must be ignore_index (-100), or at least 0 and below V (5)"));
  }
}

TEST(LinearCrossEntropy, NamesWrongOptions) {
  const Case good{at::zeros({3, 4}), at::zeros({5, 4}), at::zeros({3}, at::kLong), {}};
  const auto with = [&](const LinearCrossEntropyOptions& options) {
    auto c = good;
    c.options = options;
    return error(c);
  };
  using Options = LinearCrossEntropyOptions;
  EXPECT_EQ(with(Options().bias(at::zeros({4}))),
            "linear_cross_entropy: bias dim 0 (4) must equal weight dim 0 (5); weight [5, 4], bias "
            "[4]");
  EXPECT_EQ(with(Options().bias(at::zeros({5}, at::kDouble))),
            "linear_cross_entropy: bias dtype (Double) must equal x dtype (Float)");
  EXPECT_EQ(with(Options().bias(at::Tensor())), "linear_cross_entropy: bias must be defined");
  EXPECT_EQ(with(Options().class_weight(at::zeros({4}))),
            "linear_cross_entropy: class_weight dim 0 (4) must equal V (5); class_weight [4]");
  EXPECT_EQ(with(Options().class_weight(at::zeros({5}, at::kLong))),
            "linear_cross_entropy: class_weight dtype (Long) must equal x dtype (Float)");
  EXPECT_EQ(with(Options().class_weight(at::zeros({5}).requires_grad_())),
            "linear_cross_entropy: class_weight must not require grad");
  EXPECT_EQ(with(Options().label_smoothing(1.5)),
            "linear_cross_entropy: label_smoothing (1.5) must be in [0, 1]");
  EXPECT_EQ(with(Options().label_smoothing(NAN)),
            "linear_cross_entropy: label_smoothing (nan) must be in [0, 1]");
  EXPECT_EQ(with(Options().z_loss(-1)),
            "linear_cross_entropy: z_loss (-1) must be finite and at least 0");
  EXPECT_EQ(with(Options().softcap(0)),
            "linear_cross_entropy: softcap (0) must be finite and above 0");
}

}  // namespace
}  // namespace heed::test::of_linear_cross_entropy
