// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <heed/checkpoint.h>
#include <heed/feed_forward.h>
#include <heed/transformer.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"

namespace heed::test {
namespace {

using Tensors = std::vector<at::Tensor>;

TEST(Checkpoint, GivesInputsAndParametersTheirGradients) {
  torch::manual_seed(moved(1));
  FeedForward layer(FeedForwardOptions(8).dropout(0.3));
  const auto input = uniform({2, 3, 8}, at::kFloat);
  const auto other = uniform({2, 3, 8}, at::kFloat);
  const auto run = [&](bool checkpointing) {
    torch::manual_seed(moved(2));
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
  EXPECT_TRUE(are_equal(actual, expected));
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
  torch::manual_seed(moved(3));
  const auto output =
      checkpoint([](const Tensors& in) { return at::dropout(in[0], 0.5, true); }, {x});
  const auto next = at::rand({4});
  torch::manual_seed(moved(3));
  at::dropout(x, 0.5, true);
  EXPECT_TRUE(at::rand({4}).equal(next));
  torch::manual_seed(moved(7));
  output.sum().backward();
  const auto after = at::rand({4});
  torch::manual_seed(moved(7));
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
  EXPECT_EQ(error_text<c10::NotImplementedError>([&] {
              torch::autograd::grad({output.sum()}, {x}, {}, /*retain_graph=*/true,
                                    /*create_graph=*/true);
            }),
            "checkpoint: there is no second derivative; compute it without");
}

/// forward, eval(), backward: the gradients are those of training, dropout's draws too.
TEST(Checkpoint, RemembersTheModesOfBlocks) {
  const auto gradients = [](bool checkpointing, bool evaluate) {
    torch::manual_seed(moved(5));
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
  EXPECT_TRUE(are_equal(actual, expected));
}

TEST(Checkpoint, RunsHooksOnParametersOnceOnTheWholeGradient) {
  torch::manual_seed(moved(6));
  const auto x = uniform({3, 4}, at::kFloat), initial = uniform({4, 4}, at::kFloat);
  const auto run = [&](bool checkpointing) {
    auto weight = initial.clone().requires_grad_();
    std::vector<at::Tensor> seen;
    weight.register_hook([&](const at::Tensor& gradient) {
      seen.push_back(gradient.clone());
      return gradient * 2;
    });
    // Twice in each of two functions, once as an input, and once outside.
    const auto function = [&](const Tensors& in) { return at::matmul(in[0], weight) * weight[0]; };
    const auto once = [&](const at::Tensor& input) {
      return checkpointing ? checkpoint(function, {input, weight}) : function({input, weight});
    };
    const auto with_input = [](const Tensors& in) { return in[0] * in[1]; };
    const auto nested = [&](const Tensors& in) { return once(in[0]).sin(); };
    const auto inner = once(once(x));
    const auto y = checkpointing ? checkpoint(nested, {inner}) : nested({inner});
    const auto z =
        checkpointing ? checkpoint(with_input, {weight, y.sum()}) : with_input({weight, y.sum()});
    (z.square().sum() + weight.sum()).backward();
    EXPECT_EQ(seen.size(), 1);
    seen.push_back(weight.grad());
    // Toward parameters that are asked for, too.
    seen.push_back(torch::autograd::grad({once(x).sum()}, {weight})[0]);
    return seen;
  };
  EXPECT_TRUE(are_alike(run(true), run(false), 8 * unit_roundoff(at::kFloat)));
}

TEST(Checkpoint, RunsHooksOfAResultThatIsAParameter) {
  const auto x = uniform({4}, at::kFloat);
  auto parameter = uniform({4}, at::kFloat).requires_grad_();
  int calls = 0;
  parameter.register_hook([&](const at::Tensor& gradient) {
    ++calls;
    return gradient * 2;
  });
  checkpoint([&](const Tensors&) { return parameter; }, {x}).sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(parameter.grad().equal(at::full({4}, 2.0)));
}

/// A parameter that is frozen or thawed before the backward pass is treated as without
/// checkpointing.
TEST(Checkpoint, FollowsParametersThatAreFrozenLater) {
  const auto x = uniform({4}, at::kFloat).requires_grad_();
  for (const bool freezes : {true, false}) {
    auto parameter = uniform({4}, at::kFloat).requires_grad_(freezes);
    const auto output = checkpoint([&](const Tensors& in) { return in[0] * parameter; }, {x});
    parameter.set_requires_grad(!freezes);
    EXPECT_TRUE(
        torch::autograd::grad({output.sum()}, {x}, {}, /*retain_graph=*/true)[0].equal(parameter));
    output.sum().backward();
    EXPECT_FALSE(parameter.grad().defined()) << freezes;
  }
}

TEST(Checkpoint, GivesNoGraphToResultsThatHaveNone) {
  const auto x = uniform({4}, at::kFloat).requires_grad_();
  const auto detached = checkpoint([](const Tensors& in) { return in[0].detach() * 2; }, {x});
  EXPECT_FALSE(detached.requires_grad());
  EXPECT_TRUE(detached.equal(x.detach() * 2));
  const auto unrecorded = checkpoint(
      [](const Tensors& in) {
        const at::NoGradGuard no_grad;
        return in[0] * 2;
      },
      {x});
  EXPECT_FALSE(unrecorded.requires_grad());
  EXPECT_FALSE(checkpoint([](const Tensors& in) { return in[0].argmax(); }, {x}).requires_grad());
}

/// Undefined inputs and results among them, and one without a graph.
TEST(Checkpoint, TakesSeveralResults) {
  torch::manual_seed(moved(7));
  const auto input = uniform({4}, at::kFloat), weights = uniform({4}, at::kFloat);
  const auto function = [&](const Tensors& in) {
    EXPECT_FALSE(in[0].defined());
    return Tensors{in[1].sin(), at::Tensor(), in[1].argmax(), in[1] * weights, in[1]};
  };
  for (const size_t used : {0, 3, 4}) {
    auto x = input.clone().requires_grad_(), y = input.clone().requires_grad_();
    const auto results = checkpoint(function, {at::Tensor(), x});
    const auto expected = function({at::Tensor(), y});
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].defined(), expected[i].defined());
      EXPECT_EQ(results[i].requires_grad(), expected[i].requires_grad());
      EXPECT_TRUE(!results[i].defined() || results[i].equal(expected[i])) << i;
    }
    results[used].square().sum().backward();  // the others have no gradient
    expected[used].square().sum().backward();
    EXPECT_TRUE(x.grad().equal(y.grad())) << used;
  }
  // Nothing but undefined inputs, and an undefined result.
  auto parameter = weights.clone().requires_grad_();
  checkpoint([&](const Tensors&) { return parameter * 3; }, {at::Tensor()}).sum().backward();
  EXPECT_TRUE(parameter.grad().equal(at::full({4}, 3.0)));
  EXPECT_FALSE(checkpoint([](const Tensors&) { return at::Tensor(); }, {parameter}).defined());
}

TEST(Checkpoint, RefusesChangesInPlace) {
  const auto x = uniform({4}, at::kFloat).requires_grad_();
  const auto mask = at::ones({4}, at::kBool);
  auto parameter = uniform({4}, at::kFloat).requires_grad_();
  const auto changed = [&](const at::Tensor& tensor) {
    const auto function = [&](const Tensors& in) {
      return (in[1] * parameter).masked_fill(in[2], 0.0);
    };
    const auto output = checkpoint(function, {at::Tensor(), x, mask});
    {
      const at::NoGradGuard no_grad;
      tensor.zero_();
    }
    return value_error([&] { output.sum().backward(); });
  };
  const std::string kRule =
      " must not be changed in place before the backward pass, which computes with it again";
  EXPECT_EQ(changed(x), "checkpoint: inputs[1]" + kRule);
  EXPECT_EQ(changed(mask), "checkpoint: inputs[2]" + kRule);
  EXPECT_EQ(changed(mask.narrow(0, 0, 2)), "checkpoint: inputs[2]" + kRule);
  EXPECT_EQ(changed(parameter), "checkpoint: a parameter [4]" + kRule);
  EXPECT_EQ(value_error([&] {
              checkpoint([](const Tensors& in) { return in[0] * in[1].add_(1); },
                         {x, mask.to(at::kFloat)});
            }),
            "checkpoint: function must not change inputs[1] in place: it is called again with it");
}

/// Buffers that are filled for the next batch before the backward pass of this one.
TEST(Checkpoint, RefusesChangesOfWhatAnEncoderIsGiven) {
  torch::manual_seed(moved(8));
  const auto x = uniform({2, 5, 8}, at::kFloat);
  const auto memory = uniform({2, 3, 8}, at::kFloat);
  const auto mask = at::ones({5, 5}, at::kBool).tril(), memory_mask = at::ones({5, 3}, at::kBool);
  const auto bias = uniform({5, 5}, at::kFloat);
  Encoder encoder(
      EncoderOptions(TransformerBlockOptions(GroupQueryAttentionOptions(8, 2, 1).alibi(true))
                         .cross_attention(true),
                     2)
          .checkpointing(true));
  const auto frozen = encoder->blocks->ptr<TransformerBlockImpl>(1)->feed_forward->fc_in;
  frozen->weight.set_requires_grad(false);
  const auto slopes = encoder->blocks->ptr<TransformerBlockImpl>(0)->attention->alibi_slopes;
  const auto projected = encoder->project_memory(memory);
  const auto changed = [&](const at::Tensor& tensor, bool projects = false) {
    TransformerInputs inputs;
    inputs.mask(mask).bias(bias).memory_mask(memory_mask);
    if (projects) {
      inputs.projected_memory(projected);
    } else {
      inputs.memory(memory);
    }
    const auto output = encoder->forward(x, inputs);
    {
      const at::NoGradGuard no_grad;
      tensor.scalar_type() == at::kBool ? tensor.logical_not_() : tensor.mul_(0.5);
    }
    return value_error([&] { output.sum().backward(); });
  };
  const std::string kRule =
      " must not be changed in place before the backward pass, which computes with it again";
  EXPECT_EQ(changed(x), "Encoder: x" + kRule);
  EXPECT_EQ(changed(mask), "Encoder: mask" + kRule);
  EXPECT_EQ(changed(bias), "Encoder: bias" + kRule);
  EXPECT_EQ(changed(memory), "Encoder: memory" + kRule);
  EXPECT_EQ(changed(memory_mask), "Encoder: memory_mask" + kRule);
  EXPECT_EQ(changed(projected[1].value, true), "Encoder: projected_memory" + kRule);
  EXPECT_EQ(changed(frozen->weight), "Encoder: a parameter without gradient" + kRule);
  EXPECT_EQ(changed(slopes), "Encoder: alibi_slopes" + kRule);
  EXPECT_EQ(changed(encoder->blocks->ptr<TransformerBlockImpl>(1)->attention->fc_q->weight),
            "Encoder: a parameter [8, 8]" + kRule);
}

}  // namespace
}  // namespace heed::test
