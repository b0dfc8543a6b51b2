// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <heed/fused_adamw.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/utils.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/seeds.h"
#include "unit/models/fused_adamw_parameters.h"

namespace heed::test::of_fused_adamw {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWParamState;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

bool has_master(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

/// The error of 20 steps of numbers near 1, in the dtype that the optimizer computes in.
double tolerance(at::ScalarType dtype) { return dtype == at::kDouble ? 1e-12 : 1e-5; }

/// AdamW's formulas for one parameter, in float64.
struct Reference {
  explicit Reference(const at::Tensor& start)
      : weight(start.detach().to(at::kCPU, at::kDouble)),
        mean(at::zeros_like(weight)),
        square(at::zeros_like(weight)),
        largest(at::zeros_like(weight)) {}

  void step(const at::Tensor& of_dtype, const AdamWOptions& options) {
    const auto gradient = of_dtype.to(at::kCPU, at::kDouble);
    const auto [first, second] = options.betas();
    ++steps;
    weight = weight * (1.0 - options.lr() * options.weight_decay());
    mean = first * mean + (1.0 - first) * gradient;
    square = second * square + (1.0 - second) * gradient.square();
    largest = options.amsgrad() ? at::maximum(largest, square) : square;
    const auto corrected = largest / (1.0 - std::pow(second, steps));
    const auto rate = options.lr() / (1.0 - std::pow(first, steps));
    weight = weight - rate * mean / (corrected.sqrt() + options.eps());
  }

  at::Tensor weight, mean, square, largest;
  int64_t steps = 0;
};

/// Steps with the same gradients for the parameters of several optimizers.
void run_steps(const std::vector<Optimizer*>& optimizers, int64_t first, int64_t last) {
  for (auto step = first; step < last; ++step) {
    torch::manual_seed(moved(static_cast<uint64_t>(step + 50)));
    const auto& parameters = optimizers[0]->param_groups();
    for (size_t i = 0; i < parameters.size(); ++i) {
      for (size_t j = 0; j < parameters[i].params().size(); ++j) {
        const auto gradient = at::randn(parameters[i].params()[j].sizes(), at::kDouble);
        for (auto* optimizer : optimizers) {
          give_gradient(optimizer->param_groups()[i].params()[j], gradient);
        }
      }
    }
    for (auto* optimizer : optimizers) optimizer->step();
  }
}

TEST(FusedAdamW, FollowsTheFormulas) {
  for (const auto device : devices()) {
    for (const auto dtype : kDtypes) {
      for (const bool amsgrad : {false, true}) {
        torch::manual_seed(moved(1));
        const auto options =
            AdamWOptions(0.02).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1).amsgrad(amsgrad);
        const std::vector<at::Tensor> parameters = {
            leaf({3, 37}, dtype, device), leaf({}, dtype, device), leaf({0, 2}, dtype, device)};
        std::vector<Reference> references(parameters.begin(), parameters.end());
        FusedAdamW optimizer(parameters, options);
        for (int64_t step = 0; step < 20; ++step) {
          for (size_t i = 0; i < parameters.size(); ++i) {
            // The largest square is not the last one.
            give_gradient(parameters[i],
                          at::randn(parameters[i].sizes()) / static_cast<double>(step + 1));
            references[i].step(parameters[i].grad(), options);
          }
          optimizer.step();
        }
        for (size_t i = 0; i < parameters.size(); ++i) {
          const auto weight = exact(optimizer, parameters[i]).to(at::kCPU);
          EXPECT_TRUE(is_close(weight, references[i].weight, tolerance(dtype)))
              << dtype << " on " << device << ", amsgrad " << amsgrad;
          EXPECT_EQ(has_master(dtype), state_of(optimizer, parameters[i]).master().defined());
          EXPECT_TRUE(weight.to(dtype).equal(parameters[i].detach().to(at::kCPU)));
          EXPECT_EQ(state_of(optimizer, parameters[i]).step(), 20);
        }
      }
    }
  }
}

/// Parameters and gradients may lie in memory in any order, and with gaps.
TEST(FusedAdamW, TakesAnyLayout) {
  using View = std::function<at::Tensor(const at::Tensor&)>;
  const auto plain = [](const at::Tensor& x) { return x.clone(); };
  const auto transposed = [](const at::Tensor& x) { return x.t().contiguous().t(); };
  const auto with_gaps = [](const at::Tensor& x) { return at::stack({x, x}, -1).select(-1, 0); };
  const std::vector<View> views = {plain, transposed, with_gaps};
  for (const auto device : devices()) {
    for (const auto dtype : kDtypes) {
      for (const auto& of_parameter : views) {
        for (const auto& of_gradient : views) {
          torch::manual_seed(moved(2));
          const auto expected = leaf({5, 7}, dtype, device);
          const auto parameter = of_parameter(expected.detach()).requires_grad_();
          const auto strides = parameter.strides().vec();
          FusedAdamW whole({expected}, 0.1), other({parameter}, 0.1);
          for (int64_t step = 0; step < 3; ++step) {
            give_gradient(expected, at::randn({5, 7}));
            const auto gradient = of_gradient(expected.grad());
            auto target = parameter;
            target.mutable_grad() = gradient;
            whole.step_clipped(0.5);
            other.step_clipped(0.5);
          }
          EXPECT_TRUE(is_close(exact(other, parameter), exact(whole, expected), tolerance(dtype)))
              << dtype << " on " << device;
          EXPECT_EQ(parameter.strides().vec(), strides);
        }
      }
    }
  }
}

/// A gradient may have another dtype than its parameter: it is not rounded to that.
TEST(FusedAdamW, TakesGradientsOfOtherDtypes) {
  const auto options = AdamWOptions(0.1).eps(1.0);  // steps are nearly proportional to gradients
  for (const auto device : devices()) {
    for (const auto dtype : kDtypes) {
      for (const auto of_gradient : kDtypes) {
        torch::manual_seed(moved(11));
        auto parameter = leaf({3, 5}, dtype, device);
        Reference reference(parameter);
        FusedAdamW optimizer({parameter}, options);
        for (int64_t step = 0; step < 3; ++step) {
          const auto gradient = at::randn({3, 5}, at::kDouble).to(device).to(of_gradient);
          parameter.mutable_grad() = gradient;
          reference.step(gradient, options);
          optimizer.step();
        }
        EXPECT_TRUE(
            is_close(exact(optimizer, parameter).to(at::kCPU), reference.weight, tolerance(dtype)))
            << of_gradient << " for " << dtype << " on " << device;
      }
    }
  }
}

/// Two groups with options of their own, of which one lacks a gradient.
template <typename Any>
Any make_grouped(const std::vector<at::Tensor>& parameters) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{parameters[0], parameters[1]});
  groups.emplace_back(
      std::vector<at::Tensor>{parameters[2], parameters[3]},
      std::make_unique<AdamWOptions>(AdamWOptions(0.05).weight_decay(0.3).amsgrad(true)));
  return Any(groups, AdamWOptions(0.02).betas({0.7, 0.9}));
}

std::vector<at::Tensor> mixed_parameters(at::Device device) {
  return {leaf({4, 6}, at::kFloat, device), leaf({5}, at::kDouble, device),
          leaf({2, 3, 2}, at::kFloat, device), leaf({7}, at::kFloat, device)};
}

TEST(FusedAdamW, GivesTheNumbersOfLibTorchInGroupsAndWithASchedule) {
  for (const auto device : devices()) {
    torch::manual_seed(moved(3));
    const auto ours = mixed_parameters(device), theirs = copied(ours);
    auto fused = make_grouped<FusedAdamW>(ours);
    auto plain = make_grouped<AdamW>(theirs);
    torch::optim::StepLR schedule(fused, 2, 0.5), their_schedule(plain, 2, 0.5);
    for (int64_t step = 0; step < 8; ++step) {
      for (size_t i = 0; i < ours.size(); ++i) {
        const auto gradient = at::randn(ours[i].sizes());
        // The last parameter begins later, and pauses.
        if (i == 3 && step % 3 != 1) continue;
        give_gradient(ours[i], gradient);
        give_gradient(theirs[i], gradient);
      }
      fused.step();
      plain.step();
      schedule.step();
      their_schedule.step();
      fused.zero_grad();
      plain.zero_grad();
      EXPECT_FALSE(ours[0].grad().defined());
    }
    EXPECT_LT(fused.param_groups()[1].options().get_lr(), 0.05);
    EXPECT_TRUE(are_close(ours, theirs, tolerance(at::kFloat))) << device;
    EXPECT_TRUE(is_close(ours[1], theirs[1], tolerance(at::kDouble))) << device;
    EXPECT_EQ(state_of(fused, ours[3]).step(), 3);
  }
}

TEST(FusedAdamW, CallsTheClosureWithGradients) {
  const auto weight = at::full({3}, 2.0).requires_grad_();
  FusedAdamW optimizer({weight}, AdamWOptions(0.1).weight_decay(0.0));
  const at::NoGradGuard no_grad;
  const auto loss = optimizer.step([&] {
    optimizer.zero_grad();
    const auto sum = weight.square().sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(loss.item<float>(), 12.0F);
  EXPECT_TRUE(is_close(weight, at::full({3}, 1.9), 1e-6));
  EXPECT_FALSE(optimizer.step().defined());
}

TEST(FusedAdamW, UpdatesAParameterThatStandsTwiceOnce) {
  torch::manual_seed(moved(4));
  const auto weight = leaf({3}, at::kFloat), other = leaf({2}, at::kFloat);
  const auto alone = copied(weight);
  FusedAdamW twice({weight, other, weight}, 0.1), once({alone}, 0.1);
  for (int64_t step = 0; step < 2; ++step) {
    const auto gradient = at::randn({3});
    give_gradient(weight, gradient);
    give_gradient(alone, gradient);
    EXPECT_EQ(twice.step_clipped(0.1), once.step_clipped(0.1));
  }
  EXPECT_TRUE(weight.equal(alone));
}

/// A thousand steps, of which each is too small for the dtype.
TEST(FusedAdamW, KeepsSmallSteps) {
  for (const auto device : devices()) {
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const auto options = at::device(device).dtype(dtype);
      const auto weight = at::ones({5}, options).requires_grad_(), plain_weight = copied(weight);
      const auto of_step = AdamWOptions(1.5e-5).weight_decay(0.0);
      FusedAdamW optimizer({weight}, of_step);
      AdamW plain({plain_weight}, of_step);
      give_gradient(weight, at::ones({5}));
      give_gradient(plain_weight, at::ones({5}));
      for (int64_t step = 0; step < 1000; ++step) {
        optimizer.step();
        plain.step();
      }
      EXPECT_TRUE(plain_weight.eq(1.0).all().item<bool>()) << "the steps must be too small";
      EXPECT_TRUE(weight.equal(at::full({5}, 1.0 - 1000 * 1.5e-5, options)))
          << weight << " on " << device;
    }
  }
}

TEST(FusedAdamW, TakesOverWhatElseChangesAParameter) {
  const std::vector<std::function<void(at::Tensor)>> changes = {
      [](at::Tensor weight) {  // NOLINT: a parameter, not its memory
        const at::NoGradGuard no_grad;
        weight[1] = 5.0;
      },
      [](const at::Tensor& weight) { weight.data()[1] = 5.0; },
      [](at::Tensor weight) {  // NOLINT: a parameter, not its memory
        const auto other = weight.detach().clone();
        other[1] = 5.0;
        weight.set_data(other);
      }};
  for (const auto device : devices()) {
    for (const auto dtype : kDtypes) {
      for (const auto& change : changes) {
        torch::manual_seed(moved(5));
        const auto weight = leaf({6}, dtype, device), untouched = copied(weight);
        FusedAdamW optimizer({weight}, 1e-4), other({untouched}, 1e-4);
        run_steps({&optimizer, &other}, 0, 3);
        change(weight);
        run_steps({&optimizer, &other}, 3, 4);
        const auto changed = exact(optimizer, weight), unchanged = exact(other, untouched);
        EXPECT_NEAR(changed[1].item<double>(), 5.0, 2e-4) << dtype << " on " << device;
        for (const int64_t i : {0, 2, 3, 4, 5}) {
          EXPECT_TRUE(changed[i].equal(unchanged[i])) << dtype << " on " << device;
        }
      }
    }
  }
}

TEST(FusedAdamW, FollowsAParameterToAnotherDtype) {
  torch::manual_seed(moved(6));
  auto weight = leaf({4}, at::kFloat);
  FusedAdamW optimizer({weight}, 0.01);
  run_steps({&optimizer}, 0, 2);
  EXPECT_FALSE(state_of(optimizer, weight).master().defined());
  for (const auto dtype : {at::kBFloat16, at::kDouble, at::kHalf, at::kFloat}) {
    weight.mutable_grad().reset();
    weight.set_data(weight.detach().to(dtype));
    run_steps({&optimizer}, 2, 4);
    const auto& state = state_of(optimizer, weight);
    EXPECT_EQ(state.master().defined(), has_master(dtype));
    EXPECT_EQ(state.exp_avg().scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat);
  }
  EXPECT_EQ(state_of(optimizer, weight).step(), 10);
}

TEST(FusedAdamW, LetsAGraphNoticeTheChange) {
  for (const auto dtype : kDtypes) {
    const auto weight = leaf({4}, dtype);
    FusedAdamW optimizer({weight}, 0.01);
    const auto loss = weight.square().sum();
    give_gradient(weight, at::ones({4}));
    optimizer.step();
    EXPECT_THROW(loss.backward(), c10::Error) << dtype;
  }
}

TEST(FusedAdamW, ResumesFromItsFileExactly) {
  for (const auto dtype : kDtypes) {
    for (const bool weights_first : {false, true}) {
      torch::manual_seed(moved(7));
      const auto weight = leaf({3, 5}, dtype);
      FusedAdamW optimizer({weight}, AdamWOptions(1e-3).amsgrad(true));
      run_steps({&optimizer}, 0, 3);
      const auto kept = weight.detach().clone();
      auto fresh = at::zeros_like(kept).requires_grad_();
      FusedAdamW resumed({fresh}, 0.5);
      if (weights_first) fresh.set_data(kept.clone());
      through_file(optimizer, resumed);
      if (!weights_first) fresh.set_data(kept.clone());
      EXPECT_EQ(resumed.param_groups()[0].options().get_lr(), 1e-3);
      run_steps({&optimizer, &resumed}, 3, 6);
      EXPECT_TRUE(fresh.equal(weight)) << dtype;
      EXPECT_TRUE(exact(resumed, fresh).equal(exact(optimizer, weight))) << dtype;
    }
  }
}

/// Trains with one optimizer, and goes on with it and with another one that loads its state.
template <typename From, typename To>
void expect_goes_on(at::ScalarType dtype, double most) {
  torch::manual_seed(moved(8));
  const std::vector<at::Tensor> parameters = {leaf({3, 5}, dtype), leaf({4}, dtype)};
  From from(parameters, AdamWOptions(0.02).amsgrad(true));
  run_steps({&from}, 0, 3);
  const auto others = copied(parameters);
  To to(others, 0.5);
  through_file(from, to);
  run_steps({&from, &to}, 3, 6);
  EXPECT_EQ(to.param_groups()[0].options().get_lr(), 0.02);
  EXPECT_TRUE(are_close(others, parameters, most)) << dtype;
}

TEST(FusedAdamW, ExchangesFilesWithLibTorch) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    expect_goes_on<AdamW, FusedAdamW>(dtype, tolerance(dtype));
    expect_goes_on<FusedAdamW, AdamW>(dtype, tolerance(dtype));
  }
  // LibTorch's rounds each step to the parameter's dtype.
  expect_goes_on<AdamW, FusedAdamW>(at::kBFloat16, 0.06);
  expect_goes_on<FusedAdamW, AdamW>(at::kBFloat16, 0.06);
}

TEST(FusedAdamW, TakesAStateThatAProgramSets) {
  torch::manual_seed(moved(9));
  const auto weight = leaf({3, 5}, at::kFloat), other = copied(weight);
  FusedAdamW optimizer({weight}, 0.02), second({other}, 0.02);
  run_steps({&optimizer}, 0, 2);
  const auto& state = state_of(optimizer, weight);
  auto set = std::make_unique<AdamWParamState>();
  set->step(state.step());
  set->exp_avg(state.exp_avg().to(at::kDouble));
  set->exp_avg_sq(state.exp_avg_sq().t().contiguous().t());
  second.state()[other.unsafeGetTensorImpl()] = std::move(set);
  other.detach().copy_(weight.detach());
  run_steps({&optimizer, &second}, 2, 4);
  EXPECT_TRUE(is_close(other, weight, 1e-6));
  EXPECT_EQ(state_of(second, other).step(), 4);
}

}  // namespace
}  // namespace heed::test::of_fused_adamw
