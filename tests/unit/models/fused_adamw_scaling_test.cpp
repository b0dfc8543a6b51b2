// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <heed/clip_grad_norm.h>
#include <heed/fused_adamw.h>
#include <heed/grad_scaler.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "support/expect.h"
#include "support/seeds.h"
#include "unit/models/fused_adamw_parameters.h"

namespace heed::test::of_fused_adamw {
namespace {

constexpr auto kInfinity = std::numeric_limits<float>::infinity();

/// Parameters of several dtypes and gradients whose norm is 3.
struct Clipped {
  explicit Clipped(at::Device device) {
    torch::manual_seed(moved(10));
    for (const auto dtype : kDtypes) parameters.push_back(leaf({3, 4}, dtype, device));
    optimizer = std::make_unique<FusedAdamW>(parameters, AdamWOptions(0.1).eps(0.1));
  }

  void give_gradients(double number) {
    for (const auto& parameter : parameters) give_gradient(parameter, at::full({3, 4}, number));
  }

  std::vector<at::Tensor> results() const {
    std::vector<at::Tensor> all;
    for (const auto& parameter : parameters) all.push_back(exact(*optimizer, parameter));
    return all;
  }

  std::vector<at::Tensor> parameters;
  std::unique_ptr<FusedAdamW> optimizer;
};

TEST(FusedAdamW, ClipsInItsPass) {
  const auto gradient = 3.0 / std::sqrt(48.0);
  for (const auto device : devices()) {
    for (const double max_norm : {0.5, 2.0, 100.0}) {
      Clipped together(device), apart(device);
      for (int64_t step = 0; step < 3; ++step) {
        together.give_gradients(gradient);
        apart.give_gradients(gradient);
        const auto norm = together.optimizer->step_clipped(max_norm);
        EXPECT_NEAR(norm, 3.0, 3e-3);  // the dtypes round the gradients
        EXPECT_EQ(norm, clip_grad_norm_(apart.parameters, max_norm));
        apart.optimizer->step();
      }
      // Gradients of bfloat16 and half are rounded when they are clipped by themselves.
      const auto results = together.results(), expected = apart.results();
      EXPECT_TRUE(is_close(results[0], expected[0], 1e-6)) << max_norm << " on " << device;
      EXPECT_TRUE(is_close(results[1], expected[1], 1e-12)) << max_norm << " on " << device;
      EXPECT_TRUE(are_close(results, expected, 2e-3)) << max_norm << " on " << device;
      if (max_norm < 3.0) continue;
      EXPECT_TRUE(are_equal(results, expected)) << device;
    }
  }
}

TEST(FusedAdamW, ClipsGradientsThatAreNotFiniteAsTorchDoes) {
  const auto weight = at::zeros({2}).requires_grad_(), other = at::zeros({2}).requires_grad_();
  const auto run = [&](float number) {
    const at::NoGradGuard no_grad;
    weight.zero_();
    other.zero_();
    FusedAdamW optimizer({weight, other}, AdamWOptions(0.1).weight_decay(0.0));
    give_gradient(weight, at::tensor({1.0F, number}));
    give_gradient(other, at::ones({2}));
    return optimizer.step_clipped(1.0);
  };
  EXPECT_TRUE(std::isnan(run(NAN)));
  EXPECT_TRUE(at::cat({weight, other}).isnan().all().item<bool>());
  EXPECT_EQ(run(kInfinity), kInfinity);
  EXPECT_TRUE(weight[1].isnan().item<bool>());
  EXPECT_EQ(weight[0].item<float>(), 0.0F);
  EXPECT_TRUE(other.eq(0.0F).all().item<bool>());
}

/// Two parameters with one gradient: it is divided once for each.
TEST(FusedAdamW, ClipsAGradientThatParametersShare) {
  const auto first = at::zeros({2}).requires_grad_(), second = at::zeros({2}).requires_grad_();
  FusedAdamW optimizer({first, second}, AdamWOptions(0.1).eps(1.0).weight_decay(0.0));
  auto gradient = at::full({2}, 4.0);
  for (auto parameter : {first, second}) parameter.mutable_grad() = gradient;
  optimizer.step_clipped(1.0);
  EXPECT_TRUE(first.equal(second)) << first << second;
}

/// A training whose gradients are a number times the scale.
struct Scaled {
  Scaled(at::ScalarType dtype, at::Device device)
      : weight(at::ones({3}, at::device(device).dtype(dtype)).requires_grad_()),
        optimizer({weight}, AdamWOptions(0.01).eps(0.1)),
        scaler(GradScalerOptions().init_scale(1024.0)) {}

  bool run(double gradient, bool unscale = false) {
    scaler.scale(at::ones({}, weight.device()));
    give_gradient(weight, at::full({3}, gradient * scaler.scale(), at::kDouble));
    if (unscale) scaler.unscale_(optimizer);
    const bool stepped = scaler.step(optimizer);
    scaler.update();
    return stepped;
  }

  at::Tensor weight;
  FusedAdamW optimizer;
  GradScaler scaler;
};

TEST(FusedAdamW, DividesByTheScaleInItsPass) {
  for (const auto device : devices()) {
    for (const auto dtype : kDtypes) {
      Scaled scaled(dtype, device), unscaled(dtype, device);
      const auto plain = copied(scaled.weight);
      FusedAdamW expected({plain}, AdamWOptions(0.01).eps(0.1));
      for (const double gradient : {0.5, 2.0, 0.25}) {
        EXPECT_TRUE(scaled.run(gradient)) << dtype << " on " << device;
        EXPECT_TRUE(dtype == at::kHalf || unscaled.run(gradient, /*unscale=*/true));
        give_gradient(plain, at::full({3}, gradient));
        expected.step();
      }
      EXPECT_TRUE(exact(scaled.optimizer, scaled.weight).equal(exact(expected, plain))) << dtype;
      if (dtype == at::kHalf) continue;
      EXPECT_TRUE(exact(unscaled.optimizer, unscaled.weight).equal(exact(expected, plain)));
    }
  }
}

TEST(FusedAdamW, SkipsAStepThatOverflows) {
  for (const auto device : devices()) {
    for (const auto dtype : kDtypes) {
      for (const double gradient : {static_cast<double>(kInfinity), std::nan("")}) {
        Scaled scaled(dtype, device);
        EXPECT_FALSE(scaled.run(gradient)) << "the first step, " << dtype << " on " << device;
        EXPECT_EQ(state_of(scaled.optimizer, scaled.weight).step(), 0);
        EXPECT_TRUE(scaled.weight.eq(1.0).all().item<bool>());
        EXPECT_TRUE(scaled.run(0.5));
        const auto before = exact(scaled.optimizer, scaled.weight).clone();
        const auto mean = state_of(scaled.optimizer, scaled.weight).exp_avg().clone();
        EXPECT_FALSE(scaled.run(gradient));
        EXPECT_EQ(scaled.scaler.scale(), 256.0);
        EXPECT_TRUE(exact(scaled.optimizer, scaled.weight).equal(before));
        EXPECT_TRUE(state_of(scaled.optimizer, scaled.weight).exp_avg().equal(mean));
        EXPECT_EQ(state_of(scaled.optimizer, scaled.weight).step(), 1);
        EXPECT_TRUE(scaled.run(0.5));
      }
    }
  }
}

TEST(FusedAdamW, IsCalledByAScalerInTheRightOrderOnly) {
  Scaled scaled(at::kHalf, at::kCPU);
  EXPECT_ERROR("GradScaler::step: a loss must be scaled before",
               scaled.scaler.step(scaled.optimizer));
  scaled.scaler.scale(at::ones({}));
  EXPECT_ERROR("GradScaler::step: no parameter of the optimizer has a gradient",
               scaled.scaler.step(scaled.optimizer));
  give_gradient(scaled.weight, at::ones({3}));
  EXPECT_ERROR(
      "GradScaler::unscale_: gradient dtype (Half) of parameter 0 of group 0 must not be Half: "
      "keep parameters in Float and use Autocast",
      scaled.scaler.unscale_(scaled.optimizer));
  EXPECT_TRUE(scaled.scaler.step(scaled.optimizer));
  EXPECT_ERROR("GradScaler::step: step has been called for this optimizer since the last update",
               scaled.scaler.step(scaled.optimizer));
}

}  // namespace
}  // namespace heed::test::of_fused_adamw
