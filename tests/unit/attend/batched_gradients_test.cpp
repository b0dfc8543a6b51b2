// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/LegacyVmapMode.h>
#include <ATen/ops/_add_batch_dim.h>
#include <ATen/ops/_remove_batch_dim.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/routes.h"

namespace heed::test::of_batched_gradients {
namespace {

/// Gradients for each of several gradients of the outputs, at once: those that Python's
/// torch.autograd.grad(is_grads_batched=True) computes.
std::vector<at::Tensor> batched_gradients(const std::vector<at::Tensor>& outputs,
                                          const std::vector<at::Tensor>& inputs,
                                          const std::vector<at::Tensor>& gradients) {
  const auto level = at::impl::VmapMode::increment_nesting();
  std::vector<at::Tensor> batched, found;
  for (const auto& gradient : gradients) {
    batched.push_back(at::_add_batch_dim(gradient, /*batch_dim=*/0, level));
  }
  for (const auto& gradient :
       torch::autograd::grad(outputs, inputs, batched, /*retain_graph=*/true)) {
    found.push_back(at::_remove_batch_dim(gradient, level, gradients[0].size(0), /*out_dim=*/0));
  }
  at::impl::VmapMode::decrement_nesting();
  return found;
}

/// The options of calls whose gradients are batched, with a learned bias and learned sinks.
std::vector<std::pair<std::string, AttendOptions>> differentiable_calls(
    const Sizes& s, const at::TensorOptions& options) {
  const auto learned = [&](at::IntArrayRef sizes) {
    return uniform(sizes, options).requires_grad_();
  };
  return {{"plain", AttendOptions()},
          {"causal", AttendOptions().causal(true)},
          {"causal window", AttendOptions().causal(true).window(3)},
          {"documents", AttendOptions().causal(true).documents(
                            at::arange(s.L, options.dtype(at::kLong)).div(4, "floor"))},
          {"bias", AttendOptions().causal(true).bias(learned({1, s.H, s.L, s.S}))},
          {"sinks", AttendOptions().causal(true).sinks(learned({s.H}))},
          {"distances", AttendOptions()
                            .causal(true)
                            .left_window(9)
                            .relative_bias(learned({s.H, 9}))
                            .alibi_slopes(learned({s.B, s.H}))},
          {"lengths", AttendOptions().causal(true).key_lengths(
                          at::full({s.B}, s.S - 3, options.dtype(at::kLong)))},
          {"dropout", AttendOptions().causal(true).window(3).dropout(0.3)}};
}

/// On each path, the gradients that a vmap over the backward pass finds are those of one at a time.
TEST(AttendPath, HasBatchesOfGradients) {
  torch::manual_seed(moved(6));
  Sizes sizes;
  sizes.L = sizes.S = 20;  // more than a block of queries has
  const auto check = [&](const std::string& name, const at::TensorOptions& options,
                         const AttendOptions& call) {
    const auto inputs = make_inputs(sizes, options);
    auto leaves = leaves_of(inputs);
    if (call.bias()) leaves.push_back(*call.bias());
    if (call.sinks()) leaves.push_back(*call.sinks());
    if (call.relative_bias()) leaves.push_back(*call.relative_bias());
    if (call.alibi_slopes()) leaves.push_back(*call.alibi_slopes());
    const auto [output, lse] = attend_with_lse(inputs, call);
    const auto alone = attend(inputs, call);
    for (const auto& outputs : {std::vector{alone}, {output, lse}}) {
      std::vector<at::Tensor> of_outputs;
      for (const auto& each : outputs) {
        of_outputs.push_back(uniform({3, sizes.B, sizes.H, sizes.L, sizes.Dv}, each.options()));
        if (each.dim() == 3) of_outputs.back() = of_outputs.back().select(4, 0).contiguous();
      }
      const auto found = batched_gradients(outputs, leaves, of_outputs);
      for (int64_t n = 0; n < 3; ++n) {
        std::vector<at::Tensor> own;
        for (const auto& each : of_outputs) own.push_back(each[n]);
        const auto expected = torch::autograd::grad(outputs, leaves, own, /*retain_graph=*/true);
        std::vector<at::Tensor> of_this;
        for (const auto& each : found) of_this.push_back(each[n]);
        // Sums of float32 in two orders.
        EXPECT_TRUE(are_alike(of_this, expected, 1e-6)) << name;
      }
    }
  };
  for (const auto device : devices()) {
    for (const auto dtype : {at::kFloat, at::kHalf}) {
      const auto options = at::device(device).dtype(dtype);
      for (const auto& route : routes()) {
        const ScopedRoute in_force(route);
        for (const auto& [name, call] : differentiable_calls(sizes, options)) {
          check(route.name + ", " + c10::toString(dtype) + ", " + name, options, call);
        }
      }
    }
  }
}

}  // namespace
}  // namespace heed::test::of_batched_gradients
