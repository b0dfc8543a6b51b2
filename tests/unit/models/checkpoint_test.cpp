#include <ATen/ops/dropout.h>
#include <gtest/gtest.h>
#include <heed/checkpoint.h>
#include <heed/feed_forward.h>

#include <vector>

#include "support/expect.h"
#include "support/inputs.h"

namespace heed::test {
namespace {

using Tensors = std::vector<at::Tensor>;

TEST(Checkpoint, GivesInputsAndParametersTheirGradients) {
  torch::manual_seed(1);
  FeedForward layer(FeedForwardOptions(8).dropout(0.3));
  const auto input = uniform({2, 3, 8}, at::kFloat);
  const auto other = uniform({2, 3, 8}, at::kFloat);
  const auto run = [&](bool checkpointing) {
    torch::manual_seed(2);
    layer->zero_grad();
    auto x = input.clone().requires_grad_(), y = other.clone().requires_grad_();
    const auto function = [&](const Tensors& in) { return layer->forward(in[0]) * in[1]; };
    const auto output = checkpointing ? checkpoint(function, {x, y}) : function({x, y});
    output.square().sum().backward();
    Tensors result = {output.detach(), x.grad(), y.grad()};
    for (const auto& parameter : layer->parameters()) result.push_back(parameter.grad().clone());
    return result;
  };
  const auto expected = run(false), actual = run(true);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i;
}

TEST(Checkpoint, FindsParametersWhereNoInputHasAGradient) {
  FeedForward layer(FeedForwardOptions(8));
  const auto x = uniform({2, 3, 8}, at::kFloat);
  checkpoint([&](const Tensors& in) { return layer->forward(in[0]); }, {x}).sum().backward();
  for (const auto& parameter : layer->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TEST(Checkpoint, LeavesTheGeneratorWhereItWas) {
  const auto x = uniform({64}, at::kFloat).requires_grad_();
  torch::manual_seed(3);
  const auto output =
      checkpoint([](const Tensors& in) { return at::dropout(in[0], 0.5, true); }, {x});
  const auto next = at::rand({4});
  torch::manual_seed(3);
  at::dropout(x, 0.5, true);
  EXPECT_TRUE(at::rand({4}).equal(next));
  torch::manual_seed(7);
  output.sum().backward();
  const auto after = at::rand({4});
  torch::manual_seed(7);
  EXPECT_TRUE(at::rand({4}).equal(after));
}

TEST(Checkpoint, RefusesAHistoryThatIsNoInput) {
  const auto x = uniform({4}, at::kFloat);
  const auto hidden = uniform({4}, at::kFloat).requires_grad_() * 2;
  EXPECT_EQ(
      value_error([&] { checkpoint([&](const Tensors& in) { return in[0] * hidden; }, {x}); }),
      "checkpoint: function must get every tensor with a history as one of inputs; it uses "
      "the result of MulBackward1");
  EXPECT_EQ(value_error([&] { checkpoint([&](const Tensors&) { return hidden; }, {}); }),
            "checkpoint: inputs size (0) must be at least 1");
  // Without gradients there is no history to lose.
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(checkpoint([&](const Tensors& in) { return in[0] * hidden; }, {x}).equal(x * hidden));
}

}  // namespace
}  // namespace heed::test
