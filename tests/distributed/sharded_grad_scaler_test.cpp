// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/decoder.h>
#include <heed/distributed/data_parallel.h>
#include <heed/distributed/parallelize.h>
#include <heed/distributed/parameter_shards.h>
#include <heed/distributed/sharded_grad_scaler.h>
#include <heed/distributed/zero_redundancy_optimizer.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <limits>
#include <vector>

#include "distributed/processes.h"
#include "support/expect.h"
#include "support/seeds.h"

namespace heed::test::of_sharded_grad_scaler {
namespace {

using distributed::ShardedGradScaler;
using torch::optim::SGD;

constexpr auto kInfinity = std::numeric_limits<double>::infinity();

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  result.reserve(tensors.size());
  for (const auto& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

TEST(ShardedGradScaler, LetsAllProcessesSkipTheSameStep) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(7));
    GroupQueryAttentionOptions attention(16, 4, 2);
    Decoder model(DecoderOptions(/*vocab_size=*/12, attention, /*num_layers=*/1));
    distributed::parallelize(*model, group);
    const auto parameters = model->parameters();
    SGD optimizer(parameters, 0.1);
    const auto tokens = torch::arange(12).view({2, 6});
    const auto run = [&](GradScaler& scaler, bool overflows) {
      optimizer.zero_grad();
      scaler.scale(model->forward(tokens).square().mean()).backward();
      if (overflows && group->getRank() == 1) {  // in a part that rank 0 does not hold
        model->named_parameters()["token_embedding.weight"].mutable_grad()[0][0] = kInfinity;
      }
      scaler.unscale_(optimizer);
      distributed::clip_grad_norm_(*model, 1.0, group);
      const bool stepped = scaler.step(optimizer);
      scaler.update();
      return stepped;
    };
    ShardedGradScaler scaler(group, GradScalerOptions().init_scale(1024.0).growth_interval(2));
    const std::vector<std::pair<bool, double>> iterations = {
        {false, 1024.0}, {true, 512.0}, {false, 512.0}, {false, 1024.0}};
    for (const auto& [overflows, scale] : iterations) {
      const auto before = copies(parameters);
      EXPECT_EQ(run(scaler, overflows), !overflows);
      EXPECT_EQ(bool{are_equal(parameters, before)}, overflows);
      EXPECT_EQ(scaler.scale(), scale);
    }
    GradScaler alone;
    EXPECT_EQ(run(alone, true), group->getRank() == 0) << "which is why there is another class";
  });
}

TEST(ShardedGradScaler, TakesProcessesWithoutGradients) {
  in_processes(2, [](const ProcessGroup& group) {
    auto weight = torch::zeros({2}, torch::requires_grad());
    SGD optimizer({weight}, 0.1);
    ShardedGradScaler scaler(group);
    scaler.scale(torch::ones({}));
    if (group->getRank() == 1) weight.mutable_grad() = torch::ones({2});
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
    optimizer.zero_grad();
    EXPECT_ERROR("GradScaler::step: no parameter of the optimizer has a gradient",
                 scaler.step(optimizer));
  });
}

TEST(ShardedGradScaler, RefusesNoGroup) {
  EXPECT_ERROR("ShardedGradScaler: group must not be null",
               const ShardedGradScaler scaler(nullptr));
}

/// Averages of gradients are infinite or NaN in all processes if they are in one.
TEST(DataParallel, LetsAGradScalerSkipStepsInAllProcesses) {
  in_processes(2, [](const ProcessGroup& group) {
    torch::manual_seed(moved(7));
    torch::nn::Linear model(8, 3);
    distributed::DataParallel parallel(model, group);
    distributed::ZeroRedundancyOptimizer optimizer(SGD(model->parameters(), 0.1), group);
    GradScaler scaler;
    for (const bool overflows : {false, true, false}) {
      const auto before = copies(model->parameters());
      const auto scale = scaler.scale();
      const auto x = torch::ones({2, 8}) * (overflows && group->getRank() == 1 ? kInfinity : 1.0);
      optimizer.zero_grad();
      scaler.scale(parallel.forward(model, x).sum()).backward();
      EXPECT_EQ(scaler.step(optimizer), !overflows);
      scaler.update();
      EXPECT_EQ(bool{are_equal(model->parameters(), before)}, overflows);
      EXPECT_EQ(scaler.scale(), overflows ? scale / 2 : scale);
    }
  });
}

}  // namespace
}  // namespace heed::test::of_sharded_grad_scaler
