// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <heed/weights.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/modules.h"

namespace heed::test {

template <typename Module>
void zero_parameters(const Module& module) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : module->parameters()) parameter.zero_();
}

/// A copy is the same, in the same mode, and has memory of its own.
template <typename Module, typename Call>
void expect_clones(Module module, const at::Tensor& x, const Call& call) {
  const auto before = call(module, x);
  auto copy = copy_of(module, at::kCPU, at::kFloat);
  EXPECT_EQ(copy->is_training(), module->is_training());
  EXPECT_EQ(printed(copy), printed(module));
  EXPECT_TRUE(call(copy, x).equal(before));
  zero_parameters(copy);
  EXPECT_TRUE(call(module, x).equal(before));
}

/// LibTorch's archives and both of heed's formats hold all that makes the output.
template <typename Module, typename Call>
void expect_saves(Module module, const at::Tensor& x, const Call& call) {
  const auto before = call(module, x);
  auto loaded = copy_of(module, at::kCPU, at::kFloat);
  zero_parameters(loaded);
  std::stringstream archive;
  torch::save(module, archive);
  torch::load(loaded, archive);
  EXPECT_TRUE(call(loaded, x).equal(before)) << "torch::save";
  const auto path = ::testing::TempDir() + "heed_good_module";
  for (const auto format : {WeightFormat::safetensors, WeightFormat::torchscript}) {
    zero_parameters(loaded);
    save_weights(*module, path, SaveOptions().format(format));
    load_weights(*loaded, path);
    EXPECT_TRUE(call(loaded, x).equal(before)) << "save_weights";
  }
  std::filesystem::remove(path);
}

/// Without grad mode, in InferenceMode, and from memory of other strides.
template <typename Module, typename Call>
void expect_runs_everywhere(Module module, const at::Tensor& x, const Call& call) {
  const auto expected = call(module, x).detach();
  const auto close = [&](const at::Tensor& output) { return is_close(output, expected, 1e-5); };
  EXPECT_TRUE(close(call(module, x.transpose(0, 1).contiguous().transpose(0, 1)))) << "strides";
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(close(call(module, x))) << "without grad mode";
  }
  at::Tensor output;
  {
    const c10::InferenceMode inference;
    output = call(module, x);
  }
  EXPECT_TRUE(close(output + 0)) << "in InferenceMode";
}

/// Gradients are those of the mode that the forward pass was in.
template <typename Module, typename Call>
void expect_remembers_modes(Module module, const at::Tensor& x, const Call& call) {
  const auto leaves = module->parameters();
  if (leaves.empty()) return;
  const auto gradients = [&](bool switches) {
    torch::manual_seed(3);
    module->train();
    const auto loss = call(module, x).square().sum();
    if (switches) module->eval();
    return torch::autograd::grad({loss}, leaves);
  };
  const auto expected = gradients(false), actual = gradients(true);
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(actual[i].equal(expected[i])) << "train, forward, eval, backward: leaf " << i;
  }
}

/// Checks the promises of every module, whatever it computes; `call` as in support/every_module.h.
template <typename Module, typename Call>
void expect_is_a_good_module(const std::string& name, Module module, const at::Tensor& x,
                             const Call& call) {
  const ::testing::ScopedTrace trace(__FILE__, __LINE__, name);
  module->eval();
  expect_clones(module, x, call);
  expect_saves(module, x, call);
  expect_runs_everywhere(module, x, call);
  expect_remembers_modes(module, x, call);
}

}  // namespace heed::test
