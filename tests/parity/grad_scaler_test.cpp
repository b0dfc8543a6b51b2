// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/grad_scaler.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "fixture.h"
#include "support/expect.h"

namespace heed::test {
namespace {

TEST(GradScaler, EqualsPython) {
  const auto why = why_no_fixtures();
  if (!why.empty()) GTEST_SKIP() << why;
  const Fixture fixture(fixture_path("grad_scaler/training.pt"));
  for (const auto device : devices()) {
    auto weight = fixture["weight"].to(device, /*non_blocking=*/false, /*copy=*/true);
    weight.requires_grad_();
    torch::optim::SGD optimizer({weight}, torch::optim::SGDOptions(0.05).momentum(0.9));
    GradScaler scaler(GradScalerOptions().init_scale(1024.0).growth_interval(3));
    const auto& inputs = fixture["inputs"];
    for (int64_t step = 0; step < inputs.size(0); ++step) {
      optimizer.zero_grad();
      const auto output = inputs[step].to(device).matmul(weight);
      scaler.scale((output - 1.0).square().mean()).backward();
      scaler.unscale_(optimizer);
      torch::nn::utils::clip_grad_norm_({weight}, 0.5);
      EXPECT_EQ(!scaler.step(optimizer), fixture["skipped"][step].item<bool>()) << step;
      scaler.update();
      EXPECT_EQ(scaler.scale(), fixture["scales"][step].item<double>()) << step;
      // Sums of a few float32 numbers of size 1, in another order with another LibTorch.
      EXPECT_TRUE(is_close(weight, fixture["weights"][step], 1e-5)) << step;
    }
  }
}

}  // namespace
}  // namespace heed::test
