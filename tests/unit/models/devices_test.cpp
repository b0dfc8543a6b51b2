// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <heed/heed.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/every_module.h"
#include "support/expect.h"
#include "support/inputs.h"
#include "support/modules.h"
#include "support/seeds.h"
#include "support/transformers.h"

namespace heed::test::on_devices {
namespace {

using every_module::B, every_module::E, every_module::G, every_module::H, every_module::L,
    every_module::V;

/// Every module, on every device in every dtype, beside itself in float64 on the CPU.
class OnEveryDevice : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  OnEveryDevice() { torch::manual_seed(moved(1)); }
};

INSTANTIATE_TEST_SUITE_P(Dtypes, OnEveryDevice,
                         ::testing::Values(at::kFloat, at::kHalf, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

/// Inner tensors are rounded a dozen times, and sums of up to L * E = 352 terms pass that on.
double allowed(at::ScalarType dtype, const at::Tensor& expected) {
  const auto largest = expected.detach().abs().max().item<double>();
  return (dtype == at::kFloat ? 256 : 32) * unit_roundoff(dtype) * std::max(largest, 1.0);
}

/// The output, and the gradients of x and of the parameters.
template <typename Module, typename Call>
std::vector<at::Tensor> output_and_gradients(Module module, at::Tensor x,
                                             const at::Tensor& output_gradient, const Call& call) {
  auto leaves = module->parameters();
  if (x.is_floating_point()) leaves.push_back(x.requires_grad_());
  const auto output = call(module, x);
  auto result = torch::autograd::grad({output}, leaves, {output_gradient});
  result.push_back(output);
  return result;
}

/// `call` takes a copy of the module and x: [B, L, E], or tokens [B, L].
template <typename Module, typename Call>
void expect_everywhere(const std::string& name, Module module, at::ScalarType dtype,
                       const at::Tensor& x, const Call& call) {
  module->eval();
  module->to(dtype);
  const auto as = [&](const at::Tensor& t, at::Device device, at::ScalarType to) {
    return t.is_floating_point() ? t.to(dtype).to(device, to).detach() : t.to(device);
  };
  auto wide = copy_of(module, at::kCPU, at::kDouble);
  const auto wide_x = as(x, at::kCPU, at::kDouble);
  const auto gradient = uniform(call(wide, wide_x).sizes(), dtype);
  const auto expected = output_and_gradients(wide, wide_x, gradient.to(at::kDouble), call);
  for (const auto device : devices()) {
    const auto actual = output_and_gradients(copy_of(module, device, dtype), as(x, device, dtype),
                                             gradient.to(device), call);
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(actual[i].device(), device) << name;
      EXPECT_TRUE(is_close(actual[i], expected[i], allowed(dtype, expected[i])))
          << name << " on " << device << ", tensor " << i << " of " << actual.size();
    }
  }
}

TEST_P(OnEveryDevice, Modules) {
  every_module::visit_modules(
      [](const std::string& name, const auto& module, const at::Tensor& x, const auto& call) {
        expect_everywhere(name, module, GetParam(), x, call);
      });
}

/// Prompts of 7 and 4 tokens in one padded batch, then 3 more tokens of each, from caches.
TEST_P(OnEveryDevice, Generation) {
  const at::NoGradGuard no_grad;
  Decoder model(DecoderOptions(V, llama_options(E, H, G), 2));
  model->eval();
  model->to(GetParam());
  const auto tokens = at::randint(V, {B, L}, at::kLong);
  const auto expected = copy_of(model, at::kCPU, at::kDouble)(tokens);
  for (const auto device : devices()) {
    auto here = copy_of(model, device, GetParam());
    const auto input = tokens.to(device);
    auto caches = here->make_caches(B, L);
    here->forward_cached(input.narrow(1, 0, 7), caches, {7, 4});
    for (int64_t i = 0; i < 3; ++i) {
      const auto next =
          at::cat({input[0].narrow(0, 7 + i, 1), input[1].narrow(0, 4 + i, 1)}).view({B, 1});
      const auto scores = here->forward_cached(next, caches);
      EXPECT_EQ(scores.device(), device);
      const auto close = [&](int64_t b, int64_t position) {
        const auto wanted = expected[b][position];
        return is_close(scores[b][0], wanted, allowed(GetParam(), wanted));
      };
      EXPECT_TRUE(close(0, 7 + i)) << device;
      EXPECT_TRUE(close(1, 4 + i)) << device;
    }
  }
}

TEST(OnEveryDevice, MasksAreTheSame) {
  const auto lengths = at::tensor({int64_t{5}, int64_t{2}});
  const auto ids = at::tensor({0, 0, 1, 1, 1, 2, 2}, at::kLong);
  const auto hidden = at::tensor({1, 0, 1}, at::kLong);
  for (const auto device : devices()) {
    const auto expect = [&](const at::Tensor& actual, const at::Tensor& expected) {
      EXPECT_EQ(actual.device(), device);
      EXPECT_TRUE(actual.cpu().equal(expected));
    };
    expect(causal_mask(4, 7, device), causal_mask(4, 7));
    expect(window_mask(4, 7, 3, true, device), window_mask(4, 7, 3, true));
    expect(padding_mask(lengths.to(device), 5), padding_mask(lengths, 5));
    expect(document_mask(ids.to(device)), document_mask(ids));
    expect(from_hidden(hidden.to(device)), from_hidden(hidden));
  }
}

}  // namespace
}  // namespace heed::test::on_devices
