// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <heed/autocast.h>
#include <heed/linear_cross_entropy.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/layouts.h"
#include "support/memory.h"
#include "support/seeds.h"
#include "unit/modules/layers/linear_cross_entropy_cases.h"

namespace heed::test::of_linear_cross_entropy {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

/// torch's cross_entropy gives NaN too.
TEST(LinearCrossEntropy, IsNanWhereTheWeightsOfTheTargetsAreZero) {
  auto c = make_case({3, 2, 2});
  c.targets.zero_();
  c.options.class_weight(at::tensor({0.0, 1.0}, at::kDouble));
  EXPECT_TRUE(std::isnan(loss(c).item<double>()));
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
