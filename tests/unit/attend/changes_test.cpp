// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/multi_head_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <functional>
#include <string>
#include <vector>

#include "attend/attend_lengths.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "unit/routes.h"

/// Tensors that change between the forward and the backward pass: the gradients are those of the
/// call, or there is autograd's error, but never a wrong number.
namespace heed::test::changes {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Call {
  std::function<at::Tensor()> run;
  Tensors leaves;  // what it is differentiated by
  Tensors read;    // what it reads
};

void change(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  if (tensor.scalar_type() == at::kBool) {
    tensor.logical_not_();
  } else if (tensor.is_floating_point()) {
    tensor.mul_(-0.5);
  } else {
    tensor.sub_(1);
  }
}

/// Returns how many changes were an error.
int errors_of(const std::string& name, const Call& call) {
  int errors = 0;
  for (size_t i = 0; i < call.read.size(); ++i) {
    const auto& tensor = call.read[i];
    const auto before = tensor.detach().clone();
    const auto expected = torch::autograd::grad({call.run().sum()}, call.leaves);
    const auto output = call.run().sum();
    change(tensor);
    try {
      const auto found = torch::autograd::grad({output}, call.leaves);
      EXPECT_TRUE(are_equal(found, expected)) << name << ": tensor " << i;
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      EXPECT_NE(text.find("modified by an inplace operation"), std::string::npos) << text;
      ++errors;
    }
    const at::NoGradGuard no_grad;
    tensor.copy_(before);
  }
  return errors;
}

TEST(Changes, OfTheTensorsOfACallAreNoticedOnEveryPath) {
  torch::manual_seed(moved(1));
  const Sizes s;
  auto inputs = make_inputs(s, at::kFloat);
  const auto mask = random_mask({s.B, 1, s.L, s.S}), documents = at::randint(2, {s.B, s.L});
  const auto bias = uniform({s.L, s.S}, at::kFloat).requires_grad_();
  const auto sinks = uniform({s.H}, at::kFloat).requires_grad_();
  const auto slopes = uniform({s.H}, at::kFloat).abs();
  const auto options = AttendOptions()
                           .mask(mask)
                           .bias(bias)
                           .documents(documents)
                           .key_documents(documents.clone())
                           .sinks(sinks)
                           .alibi_slopes(slopes);
  auto leaves = leaves_of(inputs);
  leaves.insert(leaves.end(), {bias, sinks});
  Tensors read = leaves;
  read.insert(read.end(), {mask, documents, *options.key_documents(), slopes});
  for (const auto& route : routes()) {
    const ScopedRoute scoped(route);
    const auto run = [&] { return attend(inputs, options); };
    // Query, key, value, the mask and both documents at least.
    EXPECT_GE(errors_of(route.name, {run, leaves, read}), 5) << route.name;
  }
}

/// The heads are views of the tensors that the function is given.
TEST(Changes, OfWhatMultiHeadAttentionIsGivenAreNoticed) {
  torch::manual_seed(moved(2));
  const auto query = uniform({2, 5, 8}, at::kFloat).requires_grad_();
  const auto key = uniform({2, 5, 8}, at::kFloat), value = uniform({2, 5, 8}, at::kFloat);
  for (const auto& route : routes()) {
    const ScopedRoute scoped(route);
    const auto run = [&] { return multi_head_attention(query, key, value, /*num_heads=*/2); };
    EXPECT_EQ(errors_of(route.name, {run, {query}, {query, key, value}}), 3) << route.name;
  }
}

/// Lengths on the device, which a cache of fixed shape changes with each step.
TEST(Changes, OfLengthsAreNoticed) {
  torch::manual_seed(moved(3));
  const Sizes s;
  auto inputs = make_inputs(s, at::kFloat);
  inputs.query.requires_grad_();
  const auto lengths = at::tensor({4, 3}, at::kLong);
  const auto query_lengths = at::tensor({3, 2}, at::kLong);
  for (const auto& route : routes()) {
    const ScopedRoute scoped(route);
    const auto run = [&] {
      return detail::attend_lengths("attend", inputs.query, inputs.key, inputs.value, query_lengths,
                                    lengths, AttendOptions().causal(true));
    };
    errors_of(route.name, {run, {inputs.query}, {lengths, query_lengths}});
  }
}

}  // namespace
}  // namespace heed::test::changes
