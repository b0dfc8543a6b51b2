// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <heed/distributed/vocab_parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "distributed/processes.h"
#include "distributed/whole_and_parts.h"
#include "modules/layers/loss_pass.h"
#include "support/expect.h"

namespace heed::test::of_vocab_parallel {
namespace {

using distributed::gather_scores;
using distributed::vocab_parallel_cross_entropy;
using distributed::vocab_parallel_linear_cross_entropy;

/// Against LibTorch on whole scores [N, V]: loss and gradient.
void expect_cross_entropy(const ProcessGroup& group, const at::Tensor& scores,
                          const at::Tensor& targets, double tolerance,
                          int64_t ignore_index = -100) {
  const auto whole = scores.detach().clone().requires_grad_();
  const auto own_part = [&](const at::Tensor& tensor) {
    return tensor.chunk(group->getSize(), -1)[group->getRank()];
  };
  const auto part = own_part(scores).detach().clone().requires_grad_();
  const auto expected = torch::nn::functional::cross_entropy(
      whole, targets, torch::nn::functional::CrossEntropyFuncOptions().ignore_index(ignore_index));
  const auto actual = vocab_parallel_cross_entropy(part, targets, group, ignore_index);
  expect_close(actual.to(expected.scalar_type()), expected, "loss", tolerance);
  (expected * 3).backward();
  (actual * 3).backward();
  EXPECT_EQ(part.grad().scalar_type(), part.scalar_type());
  expect_close(part.grad(), own_part(whole.grad()), "gradient", tolerance);
}

TEST(VocabParallelCrossEntropy, EqualsLibTorchs) {
  for (const int64_t processes : {1, 2, 4}) {
    in_processes(processes, [](const ProcessGroup& group) {
      const auto scores = random_input({6, 12});
      const auto targets = torch::tensor({0, 11, 5, 6, 3, 2});
      expect_cross_entropy(group, scores, targets, kRounding);
      expect_cross_entropy(group, scores, targets, kRounding, /*ignore_index=*/5);
      // Float32's rounding of numbers around 1; then bfloat16's, of the gradients' last bit.
      expect_cross_entropy(group, scores.to(at::kFloat), targets, 1e-6);
      expect_cross_entropy(group, scores.to(at::kBFloat16), targets, 0.02);
      for (const auto scale : {1e4, 1e30}) {
        expect_cross_entropy(group, (scores * scale).to(at::kFloat), targets, 1e-6);
      }
      auto impossible = scores.clone();
      impossible.select(1, 7).fill_(-std::numeric_limits<double>::infinity());
      impossible.narrow(1, 0, 3).fill_(-1e300);
      expect_cross_entropy(group, impossible, torch::tensor({4, 11, 5, 6, 3, 8}), kRounding);
    });
  }
}

TEST(VocabParallelCrossEntropy, TakesAnyShapeAndIgnoresTargets) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto scores = random_input({2, 3, 6});
    const auto part = scores.chunk(2, -1)[group->getRank()];
    const auto targets = torch::tensor({{0, -100, 2}, {-100, 4, 5}});
    const auto loss = vocab_parallel_cross_entropy(part, targets, group);
    expect_close(loss,
                 torch::nn::functional::cross_entropy(scores.flatten(0, 1), targets.flatten()),
                 "loss");
    const auto none = vocab_parallel_cross_entropy(part, at::full_like(targets, -100), group);
    EXPECT_TRUE(std::isnan(none.item<double>()));
    EXPECT_EQ(vocab_parallel_cross_entropy(part.to(at::kHalf), targets, group).scalar_type(),
              at::kFloat);
    EXPECT_TRUE(gather_scores(part, group).equal(scores));
  });
}

TEST(VocabParallelCrossEntropy, NamesWrongArguments) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto scores = torch::zeros({2, 3});
    const auto error = [&](const at::Tensor& scores, const at::Tensor& targets) {
      return value_error([&] { vocab_parallel_cross_entropy(scores, targets, group); });
    };
    EXPECT_EQ(error(scores, torch::tensor({0, 6})),
              "vocab_parallel_cross_entropy: targets (0 to 6) must be ignore_index (-100), or at "
              "least 0 and below V (6)");
    EXPECT_EQ(error(scores, torch::tensor({0, 1, 2})),
              "vocab_parallel_cross_entropy: targets [3] must have shape [2]; scores [2, 3]");
    EXPECT_EQ(error(scores, torch::zeros({2})),
              "vocab_parallel_cross_entropy: targets must be defined and of dtype Long");
    EXPECT_EQ(error(torch::zeros({2, 3}, at::kLong), torch::tensor({0, 1})),
              "vocab_parallel_cross_entropy: scores must be floating and have a last dimension");
  });
}

std::vector<LinearCrossEntropyOptions> every_option() {
  std::vector<LinearCrossEntropyOptions> all;
  for (int64_t bits = 0; bits < 32; ++bits) {
    for (const auto reduction : {LossReduction::mean, LossReduction::sum, LossReduction::none}) {
      LinearCrossEntropyOptions options;
      options.reduction(reduction);
      if ((bits & 1) != 0) options.bias(random_input({12}, 5));
      if ((bits & 2) != 0) options.class_weight(random_input({12}, 6).abs() + 0.1);
      if ((bits & 4) != 0) options.label_smoothing(0.1);
      if ((bits & 8) != 0) options.z_loss(0.02);
      if ((bits & 16) != 0) options.softcap(1.5);
      all.push_back(options);
    }
  }
  return all;
}

/// x [N, E], a weight or this process's part of it, and what they give: the loss and gradients.
struct Computed {
  at::Tensor loss, of_x, of_weight, of_bias;
};

template <typename Loss>
Computed compute(const at::Tensor& x, const at::Tensor& weight, LinearCrossEntropyOptions options,
                 const Loss& loss_of) {
  const auto leaf = [](const at::Tensor& tensor) {
    return tensor.detach().clone(at::MemoryFormat::Contiguous).requires_grad_();
  };
  const auto own_x = leaf(x), own_weight = leaf(weight);
  if (options.bias()) options.bias(leaf(*options.bias()));
  const auto loss = loss_of(own_x, own_weight, options);
  weighed(loss).backward();
  return {loss.detach(), own_x.grad(), own_weight.grad(),
          options.bias() ? options.bias()->grad() : at::Tensor()};
}

/// Against linear_cross_entropy of the whole weight [12, E]: loss and gradients.
void expect_linear_cross_entropy(const ProcessGroup& group, const at::Tensor& targets,
                                 const LinearCrossEntropyOptions& options, at::ScalarType dtype,
                                 double tolerance) {
  const auto x = random_input({6, 5}).to(dtype), weight = random_input({12, 5}, 4).to(dtype);
  const auto own_part = [&](const at::Tensor& tensor) {
    return tensor.chunk(group->getSize())[group->getRank()];
  };
  auto whole_options = options;
  if (options.bias()) whole_options.bias(options.bias()->to(dtype));
  if (options.class_weight()) whole_options.class_weight(options.class_weight()->to(dtype));
  auto own_options = whole_options;
  if (options.bias()) own_options.bias(own_part(*whole_options.bias()));
  const auto whole = compute(x, weight, whole_options,
                             [&](const auto& own_x, const auto& own_weight, const auto& given) {
                               return linear_cross_entropy(own_x, own_weight, targets, given);
                             });
  const auto part = compute(
      x, own_part(weight), own_options, [&](const auto& own_x, const auto& own, const auto& given) {
        return vocab_parallel_linear_cross_entropy(own_x, own, targets, group, given);
      });
  expect_close(part.loss, whole.loss, "loss", tolerance);
  expect_close(part.of_x, whole.of_x, "gradient of x", tolerance);
  expect_close(part.of_weight, own_part(whole.of_weight), "gradient of the weight", tolerance);
  if (options.bias()) {
    expect_close(part.of_bias, own_part(whole.of_bias), "gradient of the bias", tolerance);
  }
}

TEST(VocabParallelLinearCrossEntropy, EqualsThatOfTheWholeWeight) {
  for (const int64_t processes : {1, 2, 4}) {
    in_processes(processes, [](const ProcessGroup& group) {
      const auto targets = torch::tensor({0, 11, -100, 6, 3, 2});
      for (const auto& options : every_option()) {
        expect_linear_cross_entropy(group, targets, options, at::kDouble, kRounding);
      }
      const auto smooth = LinearCrossEntropyOptions().label_smoothing(0.1).z_loss(0.1);
      expect_linear_cross_entropy(group, targets, smooth, at::kFloat, 1e-5);
      expect_linear_cross_entropy(group, targets, smooth, at::kBFloat16, 0.05);
      // Rows in blocks of one.
      const heed::detail::ScopedLossBlocks blocks(1);
      for (const auto reduction : {LossReduction::mean, LossReduction::none}) {
        const auto options = LinearCrossEntropyOptions().reduction(reduction);
        expect_linear_cross_entropy(group, targets, options, at::kDouble, kRounding);
        expect_linear_cross_entropy(group, at::full_like(targets, -100), options, at::kDouble,
                                    kRounding);
      }
    });
  }
}

TEST(VocabParallelLinearCrossEntropy, IsDifferentiatedAgain) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto x = random_input({4, 5}).requires_grad_();
    const auto weight = random_input({3, 5}, 4 + group->getRank()).requires_grad_();
    const auto targets = torch::tensor({0, 5, 3, 2});
    const auto loss = vocab_parallel_linear_cross_entropy(x, weight, targets, group);
    const auto first = torch::autograd::grad({loss}, {x, weight}, {}, /*retain_graph=*/true);
    const auto again = torch::autograd::grad({loss}, {x, weight}, {}, /*retain_graph=*/true);
    for (size_t i = 0; i < 2; ++i) expect_close(again[i], first[i], "gradient");
    EXPECT_THROW(torch::autograd::grad({loss}, {x, weight}, {}, /*retain_graph=*/true,
                                       /*create_graph=*/true),
                 c10::Error);
  });
}

/// Each process refuses by itself, so that the group stays open.
TEST(VocabParallelLinearCrossEntropy, NamesWrongArguments) {
  in_processes(2, [](const ProcessGroup& group) {
    const auto x = torch::zeros({2, 3}), weight = torch::zeros({3, 3});
    const auto targets = torch::tensor({0, 1});
    const auto error = [&](const at::Tensor& given, const LinearCrossEntropyOptions& options) {
      return value_error(
          [&] { vocab_parallel_linear_cross_entropy(x, weight, given, group, options); });
    };
    EXPECT_EQ(error(torch::tensor({0, 6}), {}),
              "vocab_parallel_linear_cross_entropy: targets[1] (6) must be ignore_index (-100), or "
              "at least 0 and below V (6)");
    EXPECT_EQ(error(targets, LinearCrossEntropyOptions().class_weight(torch::ones({3}))),
              "vocab_parallel_linear_cross_entropy: class_weight dim 0 (3) must equal V (6); "
              "class_weight [3]");
    EXPECT_EQ(error(targets, LinearCrossEntropyOptions().bias(torch::ones({6}))),
              "vocab_parallel_linear_cross_entropy: bias dim 0 (6) must equal weight dim 0 (3); "
              "weight [3, 3], bias [6]");
    EXPECT_EQ(value_error([&] { vocab_parallel_linear_cross_entropy(x, {}, targets, group); }),
              "vocab_parallel_linear_cross_entropy: x and weight must be defined, and weight "
              "[V / P, E]");
    EXPECT_TRUE(std::isfinite(
        vocab_parallel_linear_cross_entropy(x, weight, targets, group).item<double>()));
  });
}

}  // namespace
}  // namespace heed::test::of_vocab_parallel
