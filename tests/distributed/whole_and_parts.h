// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>
#include <heed/distributed/parallelize.h>
#include <heed/distributed/parameter_shards.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "distributed/processes.h"
#include "support/seeds.h"

/// Comparisons of a module in one process with the same module split among processes.

namespace heed::test {

using distributed::parallelize;
using distributed::ParallelizeOptions;

/// In float64. Parts are summed in another order than in one process, which changes the last bits
/// of numbers around 1; three steps of Adam do not add to it much. A wrong number is off by far
/// more.
constexpr double kRounding = 1e-10;

inline void expect_close(const at::Tensor& actual, const at::Tensor& expected,
                         const std::string& what, double tolerance = kRounding) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(at::allclose(actual, expected, tolerance, tolerance))
      << what << " differs by " << (actual - expected).abs().max().item<double>();
}

/// The part of a whole tensor that a parameter's name says.
inline at::Tensor part_of(const at::Tensor& whole, const std::string& name,
                          const std::map<std::string, TensorShard>& shards) {
  const auto found = shards.find(name);
  if (found == shards.end() || !whole.defined()) return whole;
  const auto& shard = found->second;
  EXPECT_EQ(whole.size(shard.dim), shard.whole) << name;
  return whole.narrow(shard.dim, shard.first, shard.size);
}

/// A module in one process, and the same split, both from one seed and in float64.
template <typename Module>
struct WholeAndParts {
  WholeAndParts(const std::function<Module()>& make, const ProcessGroup& group,
                const ParallelizeOptions& options = {})
      : whole(made(make)), parts(made(make)) {
    parallelize(*parts, group, options);
    shards = distributed::shards_of(*parts);
    EXPECT_FALSE(shards.empty());
  }

  static Module made(const std::function<Module()>& make) {
    torch::manual_seed(moved(7));
    auto module = make();
    module->to(torch::kDouble);
    // Biases and sinks are 0 in new models, where their errors would not show.
    const torch::NoGradGuard no_grad;
    for (auto& parameter : module->parameters()) {
      parameter.add_(torch::randn_like(parameter), 0.1);
    }
    return module;
  }

  void expect_same_parameters(const char* what) const {
    const auto own = parts->named_parameters();
    for (const auto& parameter : whole->named_parameters()) {
      expect_close(own[parameter.key()], part_of(parameter.value(), parameter.key(), shards),
                   what + (" " + parameter.key()));
    }
  }

  void expect_same_gradients() const {
    const auto own = parts->named_parameters();
    for (const auto& parameter : whole->named_parameters()) {
      const auto expected = part_of(parameter.value().grad(), parameter.key(), shards);
      const auto& actual = own[parameter.key()].grad();
      ASSERT_EQ(actual.defined(), expected.defined()) << parameter.key();
      if (expected.defined()) expect_close(actual, expected, "gradient of " + parameter.key());
    }
  }

  /// Three steps of Adam on both, whose losses are `whole_loss()` and `parts_loss()`.
  void expect_same_training(const std::function<at::Tensor()>& whole_loss,
                            const std::function<at::Tensor()>& parts_loss) {
    expect_same_parameters("initial");
    torch::optim::Adam whole_optimizer(whole->parameters(), 1e-3);
    torch::optim::Adam parts_optimizer(parts->parameters(), 1e-3);
    for (int64_t step = 0; step < 3; ++step) {
      whole_optimizer.zero_grad();
      parts_optimizer.zero_grad();
      const auto expected = whole_loss();
      const auto actual = parts_loss();
      expect_close(actual, expected, "loss");
      expected.backward();
      actual.backward();
      expect_same_gradients();
      whole_optimizer.step();
      parts_optimizer.step();
    }
    expect_same_parameters("trained");
  }

  Module whole, parts;
  std::map<std::string, TensorShard> shards;
};

/// A loss in which each element counts differently.
inline at::Tensor weighed(const at::Tensor& output) {
  return (output * torch::arange(1.0, 1.0 + static_cast<double>(output.numel()), output.options())
                       .sin()
                       .view_as(output))
      .sum();
}

/// Numbers that are equal in all processes and at each call.
inline at::Tensor random_input(at::IntArrayRef sizes, int64_t seed = 3) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(moved(seed)), torch::kDouble);
}

}  // namespace heed::test
