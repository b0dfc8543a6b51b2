#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <heed/checkpoint.h>
#include <heed/feed_forward.h>
#include <heed/transformer.h>
#include <torch/csrc/autograd/autograd.h>

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

/// The function's graph is then a leaf, which no node leads to.
TEST(Checkpoint, TakesFunctionsThatReturnWhatTheyAreGiven) {
  auto x = uniform({4}, at::kFloat).requires_grad_();
  auto parameter = uniform({4}, at::kFloat).requires_grad_();
  checkpoint([](const Tensors& in) { return in[0]; }, {x}).sum().backward();
  EXPECT_TRUE(x.grad().equal(at::ones({4})));
  checkpoint([&](const Tensors&) { return parameter; }, {x}).sum().backward();
  EXPECT_TRUE(parameter.grad().equal(at::ones({4})));
  EXPECT_TRUE(x.grad().equal(at::ones({4})));
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

TEST(Checkpoint, RefusesASecondDerivative) {
  const auto x = uniform({4}, at::kFloat).requires_grad_();
  const auto output = checkpoint([](const Tensors& in) { return in[0].sin(); }, {x});
  try {
    torch::autograd::grad({output.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
    ADD_FAILURE() << "expected c10::NotImplementedError";
  } catch (const c10::NotImplementedError& error) {
    EXPECT_STREQ(error.what_without_backtrace(),
                 "checkpoint: there is no second derivative; compute it without");
  }
}

/// forward, eval(), backward: the gradients are those of training, dropout's draws too.
TEST(Checkpoint, RemembersTheModesOfBlocks) {
  const auto gradients = [](bool checkpointing, bool evaluate) {
    torch::manual_seed(5);
    Encoder encoder(
        EncoderOptions(TransformerBlockOptions(GroupQueryAttentionOptions(8, 2, 1)).dropout(0.3), 2)
            .checkpointing(checkpointing));
    const auto last = encoder->blocks->ptr<TransformerBlockImpl>(1);
    last->feed_forward->eval();  // one that is not in the mode of its parent
    const auto output = encoder->forward(uniform({2, 5, 8}, at::kFloat));
    if (evaluate) encoder->eval();
    output.square().sum().backward();
    EXPECT_EQ(last->is_training(), !evaluate);
    EXPECT_FALSE(last->feed_forward->is_training());
    Tensors result;
    for (const auto& parameter : encoder->parameters()) result.push_back(parameter.grad());
    return result;
  };
  const auto expected = gradients(false, false), actual = gradients(true, true);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << i;
}

}  // namespace
}  // namespace heed::test
