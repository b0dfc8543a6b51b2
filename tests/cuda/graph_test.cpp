// SPDX-License-Identifier: BSD-3-Clause
#include "support/simulated_cuda/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/simulated_cuda/simulated_cuda.h"

/// Graphs of the simulated device: what a real one's hold, and what they cannot.

namespace heed::test::of_graphs {
namespace {

const at::Device kDevice(at::kCUDA, 0);

template <typename Call>
std::string refusal(const Call& call) {
  CapturedGraph graph;
  const Capture capture(graph);
  return error_text<c10::Error>(call);
}

TEST(Graphs, ReplayOnTheSameMemory) {
  const auto x = at::zeros({3}, kDevice), sum = at::zeros({3}, kDevice);
  CapturedGraph graph;
  at::Tensor y;
  {
    const Capture capture(graph);
    const auto twice = x * 2;  // freed before the replay
    y = (twice + 1).exp();
    sum.add_(y);
    x.narrow(0, 0, 1).fill_(7);
  }
  // Nothing has happened.
  EXPECT_TRUE(y.cpu().isnan().all().item<bool>());
  EXPECT_TRUE(sum.cpu().equal(at::zeros({3})));
  EXPECT_TRUE(x.cpu().equal(at::zeros({3})));
  x.fill_(1);
  graph.replay();
  EXPECT_TRUE(is_close(y, at::full({3}, std::exp(3.0)), 1e-5));
  EXPECT_TRUE(x.cpu().equal(at::tensor({7.F, 1.F, 1.F})));
  x.fill_(0.5);
  graph.replay();
  EXPECT_TRUE(is_close(y, at::full({3}, std::exp(2.0)), 1e-5));
  EXPECT_TRUE(is_close(sum, at::full({3}, std::exp(3.0) + std::exp(2.0)), 1e-5));
}

TEST(Graphs, HoldViewsIndicesAndLists) {
  const auto table = at::arange(6, kDevice).to(at::kFloat).view({3, 2});
  const auto index = at::zeros({1}, at::device(kDevice).dtype(at::kLong));
  const auto place = at::zeros({4, 2}, kDevice);
  CapturedGraph graph;
  at::Tensor joined;
  {
    const Capture capture(graph);
    const auto row = table.index_select(0, index);
    place.index_put_({index}, row);
    joined = at::cat({row, place.t().contiguous().view({-1, 2})});
    index.add_(1);
  }
  graph.replay();
  graph.replay();
  EXPECT_TRUE(place.cpu().equal(at::tensor({0.F, 1.F, 2.F, 3.F, 0.F, 0.F, 0.F, 0.F}).view({4, 2})));
  EXPECT_TRUE(joined.cpu()[0].equal(at::tensor({2.F, 3.F})));
  EXPECT_TRUE(index.cpu().equal(at::full({1}, 2, at::kLong)));
}

TEST(Graphs, HoldKernelsOfAttentionAndGradients) {
  const auto x = at::randn({1, 2, 6, 8}, kDevice).to(at::kHalf).requires_grad_();
  const auto run = [&] {
    const auto y = at::scaled_dot_product_attention(x, x, x, {}, 0.0, /*is_causal=*/true);
    return torch::autograd::grad({y}, {x}, {at::ones_like(y)})[0];
  };
  CapturedGraph graph;
  at::Tensor gradient;
  {
    const Capture capture(graph);
    gradient = run();
  }
  const at::NoGradGuard no_grad;
  x.copy_(at::randn({1, 2, 6, 8}, kDevice));
  graph.replay();
  const at::AutoGradMode with_grad(true);
  EXPECT_TRUE(gradient.cpu().equal(run().cpu()));
}

TEST(Graphs, RefuseToWait) {
  const auto x = at::ones({2}, kDevice);
  const auto refused = testing::HasSubstr("operation not permitted when stream is capturing");
  EXPECT_THAT(refusal([&] { static_cast<void>(x.sum().item<float>()); }), refused);
  EXPECT_THAT(refusal([&] { static_cast<void>(x.cpu()); }), refused);
  EXPECT_THAT(refusal([&] { static_cast<void>(x.nonzero()); }), refused);
  EXPECT_THAT(refusal([&] { static_cast<void>(at::ones({2}).to(kDevice)); }), refused);
}

TEST(Graphs, RefuseWhatAReplayWouldNotDoAgain) {
  const auto pinned = at::ones({2}, at::TensorOptions().pinned_memory(true));
  EXPECT_EQ(refusal([&] { static_cast<void>(pinned.to(kDevice, true)); }),
            "simulated CUDA: a graph must not use memory of the host");
  EXPECT_EQ(refusal([] { static_cast<void>(at::rand({2}, kDevice)); }),
            "simulated CUDA: a graph must not use random numbers");
}

TEST(Graphs, DoNotKeepMemoryOfBefore) {
  auto x = at::ones({2}, kDevice);
  CapturedGraph graph;
  at::Tensor y;
  {
    const Capture capture(graph);
    y = x + x;
  }
  graph.replay();
  EXPECT_TRUE(y.cpu().equal(at::full({2}, 2.0)));
  x.reset();
  EXPECT_THROW(graph.replay(), c10::Error);
}

}  // namespace
}  // namespace heed::test::of_graphs
