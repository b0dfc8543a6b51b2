// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/autocast.h>
#include <torch/nn/modules/normalization.h>

#include <string>

#include "support/every_module.h"
#include "support/good_module.h"
#include "support/seeds.h"

namespace heed::test {
namespace {

/// As they are often trained. The same numbers in float32 change nothing.
template <typename Module, typename Call>
void expect_takes_precise_norms(const std::string& name, Module module, const at::Tensor& x,
                                const Call& call) {
  module->to(at::kBFloat16);
  module->eval();
  const auto low = x.is_floating_point() ? x.to(at::kBFloat16) : x;
  const auto expected = call(module, low);
  for (const auto& each : module->modules()) {
    const bool is_norm = each->template as<NormImpl>() != nullptr ||
                         each->template as<torch::nn::LayerNormImpl>() != nullptr;
    if (is_norm) each->to(at::kFloat);
  }
  EXPECT_TRUE(call(module, low).equal(expected)) << name;
}

TEST(EveryModule, TakesNormsInFloat32) {
  torch::manual_seed(moved(5));
  every_module::visit_modules(
      [](const auto&... arguments) { expect_takes_precise_norms(arguments...); });
}

TEST(EveryModule, RefusesIntegersUnderAutocast) {
  torch::manual_seed(moved(6));
  every_module::visit_modules(
      [](const std::string& name, auto module, const at::Tensor& x, const auto& call) {
        if (!x.is_floating_point()) return;
        const Autocast autocast(at::kCPU, at::kBFloat16);
        EXPECT_NE(value_error([&] { call(module, x.mul(3).to(at::kLong)); }), "") << name;
      });
}

TEST(EveryModule, IsAGoodModule) {
  torch::manual_seed(moved(4));
  every_module::visit_modules(
      [](const auto&... arguments) { expect_is_a_good_module(arguments...); });
}

}  // namespace
}  // namespace heed::test
