// SPDX-License-Identifier: BSD-3-Clause
#include "models/expert_runs.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <gtest/gtest.h>
#include <heed/autocast.h>
#include <heed/feed_forward.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

namespace heed::test::of_expert_runs {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t E = 16, kHidden = 24;
const std::vector<int64_t> kRows = {5, 0, 9, 7, 1, 6};  // 14 for each of two threads
// 136 for each of two threads; some experts have too few for swiglu_layer.
const std::vector<int64_t> kManyRows = {40, 0, 90, 71, 7, 64};

/// Calls run() with so many threads.
template <typename Run>
auto with_threads(int threads, const Run& run) {
  const auto restore =
      c10::make_scope_exit([before = at::get_num_threads()] { at::set_num_threads(before); });
  at::set_num_threads(threads);
  return run();
}

torch::nn::ModuleList make_experts(at::ScalarType dtype, double dropout = 0.0, bool bias = true) {
  torch::nn::ModuleList experts;
  for (size_t i = 0; i < kRows.size(); ++i) {
    experts->push_back(FeedForward(FeedForwardOptions(E)
                                       .hidden_dim(kHidden)
                                       .activation(Activation::swiglu)
                                       .bias(bias)
                                       .dropout(dropout)));
  }
  experts->to(dtype);
  return experts;
}

Tensors make_inputs(at::ScalarType dtype, bool requires_grad,
                    const std::vector<int64_t>& counts = kRows) {
  Tensors inputs;
  for (const auto rows : counts) {
    inputs.push_back(uniform({rows, E}, dtype).requires_grad_(requires_grad));
  }
  return inputs;
}

/// A number of all outputs, to be differentiated.
at::Tensor total_of(const Tensors& outputs) {
  at::Tensor total;
  for (const auto& output : outputs) {
    const auto own = output.square().sum();
    total = total.defined() ? total + own : own;
  }
  return total;
}

/// Outputs, gradients and second derivatives of the first rows and weights.
Tensors everything(const torch::nn::ModuleList& experts, const Tensors& inputs) {
  auto results = detail::run_experts(experts, inputs);
  const auto total = total_of(results);
  auto sources = experts->parameters();
  sources.insert(sources.end(), inputs.begin(), inputs.end());
  const auto first = torch::autograd::grad({total}, sources, {}, /*retain_graph=*/true);
  const auto again = torch::autograd::grad({total}, sources, {}, true, /*create_graph=*/true);
  const auto second = torch::autograd::grad({again.back().square().sum()},
                                            {inputs.back(), experts->parameters().back()}, {},
                                            false, false, /*allow_unused=*/true);
  for (const auto* list : {&first, &again, &second}) {
    for (const auto& each : *list) results.push_back(each.defined() ? each : at::zeros({1}));
  }
  return results;
}

TEST(RowsDivide, IfNoThreadHasManyMoreThanItsShare) {
  EXPECT_TRUE(detail::rows_divide({4, 4}, 2));
  EXPECT_TRUE(detail::rows_divide({1, 7, 2, 4}, 2));
  EXPECT_TRUE(detail::rows_divide({5, 3}, 2));   // 1.25 shares
  EXPECT_FALSE(detail::rows_divide({9, 5}, 2));  // 1.29
  EXPECT_FALSE(detail::rows_divide({1, 1, 1}, 2));
  EXPECT_FALSE(detail::rows_divide({8}, 2));
  EXPECT_FALSE(detail::rows_divide({4, 4}, 1));
  EXPECT_TRUE(detail::rows_divide(kRows, 2));
}

TEST(RunExperts, GivesTheSameSideBySideAsInTurn) {
  torch::manual_seed(moved(31));
  auto experts = make_experts(at::kDouble);
  const auto inputs = make_inputs(at::kDouble, true);
  const auto run = [&] { return everything(experts, inputs); };
  const auto expected = with_threads(1, run);
  EXPECT_TRUE(are_alike(with_threads(2, run), expected, 1e-14));  // sums of some 20 products
}

/// Experts in bfloat16 without biases, which swiglu_layer runs where it takes them.
TEST(RunExperts, GivesTheSameInBFloat16) {
  torch::manual_seed(moved(37));
  auto experts = make_experts(at::kBFloat16, /*dropout=*/0.0, /*bias=*/false);
  const auto inputs = make_inputs(at::kBFloat16, true, kManyRows);
  const auto run = [&] { return everything(experts, inputs); };
  const auto expected = with_threads(1, run);
  // Gradients of squares of sums, rounded to 4e-3 in each step.
  EXPECT_TRUE(are_alike(with_threads(2, run), expected, 4e-2));
  for (const auto& parameter : experts[2]->parameters()) parameter.requires_grad_(false);
  experts[3]->parameters()[0].requires_grad_(false);
  const auto gradients = [&] {
    experts->zero_grad();
    total_of(detail::run_experts(experts, inputs)).backward();
    Tensors all;
    for (const auto& parameter : experts->parameters()) {
      EXPECT_EQ(parameter.grad().defined(), parameter.requires_grad());
      if (parameter.requires_grad()) all.push_back(parameter.grad().clone());
    }
    return all;
  };
  const auto in_turn = with_threads(1, gradients);
  EXPECT_TRUE(are_alike(with_threads(2, gradients), in_turn, 4e-2));
}

TEST(RunExperts, DifferentiatesOnlyWhatRequiresAGradient) {
  torch::manual_seed(moved(32));
  auto experts = make_experts(at::kDouble);
  for (const auto& parameter : experts[2]->parameters()) parameter.requires_grad_(false);
  experts[0]->parameters()[0].requires_grad_(false);
  const auto inputs = make_inputs(at::kDouble, false);
  const auto run = [&] {
    experts->zero_grad();
    total_of(detail::run_experts(experts, inputs)).backward();
    Tensors gradients;
    for (const auto& parameter : experts->parameters()) {
      EXPECT_EQ(parameter.grad().defined(), parameter.requires_grad());
      if (parameter.requires_grad()) gradients.push_back(parameter.grad().clone());
    }
    return gradients;
  };
  const auto expected = with_threads(1, run);
  EXPECT_TRUE(are_alike(with_threads(2, run), expected, 1e-14));
}

/// The gradient of a weight with two places in an expert is the sum of both, added once.
TEST(RunExperts, AddsTheGradientsOfATiedWeight) {
  torch::manual_seed(moved(38));
  for (const auto dtype : {at::kDouble, at::kBFloat16}) {
    auto experts = make_experts(dtype, /*dropout=*/0.0, /*bias=*/false);
    const auto tied = experts[2]->as<FeedForwardImpl>();
    tied->fc_in = std::dynamic_pointer_cast<torch::nn::LinearImpl>(
        tied->replace_module("fc_in", tied->fc_gate.ptr()));
    const auto inputs = make_inputs(dtype, true, kManyRows);
    const auto gradient = [&] {
      const auto total = total_of(detail::run_experts(experts, inputs));
      return torch::autograd::grad({total}, {tied->fc_gate->weight, inputs[2]});
    };
    const auto expected = with_threads(1, gradient);
    // Sums of some hundred products, or bfloat16's rounding in each step.
    EXPECT_TRUE(
        are_alike(with_threads(2, gradient), expected, dtype == at::kDouble ? 1e-13 : 4e-2));
  }
}

TEST(RunExperts, RecordsNothingWithoutGradients) {
  torch::manual_seed(moved(33));
  auto experts = make_experts(at::kFloat);
  const auto inputs = make_inputs(at::kFloat, false);
  with_threads(2, [&] {
    const at::NoGradGuard no_grad;
    for (const auto& output : detail::run_experts(experts, inputs)) {
      EXPECT_FALSE(output.requires_grad());
    }
  });
}

/// Threads that run experts have the state of the caller's.
TEST(RunExperts, FollowsAutocast) {
  torch::manual_seed(moved(34));
  auto experts = make_experts(at::kFloat);
  const auto inputs = make_inputs(at::kFloat, true);
  const auto run = [&] {
    Tensors outputs;
    {
      const Autocast autocast(at::kCPU, at::kBFloat16);
      outputs = detail::run_experts(experts, inputs);
    }
    EXPECT_EQ(outputs[0].scalar_type(), at::kBFloat16);
    auto results = torch::autograd::grad({total_of(outputs)}, {inputs[0], inputs[3]});
    results.insert(results.end(), outputs.begin(), outputs.end());
    return results;
  };
  const auto expected = with_threads(1, run);
  EXPECT_TRUE(are_alike(with_threads(2, run), expected, 2e-2));  // bfloat16's rounding, 4e-3
}

TEST(RunExperts, NoticesChangesAndFreedGraphs) {
  torch::manual_seed(moved(35));
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    auto experts = make_experts(dtype, /*dropout=*/0.0, /*bias=*/false);
    const auto inputs = make_inputs(dtype, true, kManyRows);
    with_threads(2, [&] {
      const auto total = total_of(detail::run_experts(experts, inputs));
      total.backward({}, /*retain_graph=*/true);
      total.backward();
      EXPECT_THROW(total.backward(), c10::Error);
      for (const auto& parameter : experts[3]->parameters()) {
        const auto later = total_of(detail::run_experts(experts, inputs));
        {
          const at::NoGradGuard no_grad;
          parameter.mul_(2);
        }
        EXPECT_THROW(later.backward(), c10::Error);
      }
    });
  }
}

/// Dropout draws the numbers of one generator: in turn, so that they do not depend on threads.
TEST(RunExperts, DropsInTurn) {
  auto experts = make_experts(at::kFloat, /*dropout=*/0.5);
  torch::manual_seed(moved(36));
  const auto inputs = make_inputs(at::kFloat, false);
  const auto run = [&] {
    torch::manual_seed(7);
    return detail::run_experts(experts, inputs);
  };
  const auto expected = with_threads(1, run);
  EXPECT_TRUE(are_alike(with_threads(2, run), expected, 1e-6));
}

}  // namespace
}  // namespace heed::test::of_expert_runs
