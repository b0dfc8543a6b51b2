#include <gtest/gtest.h>
#include <heed/distributed/vocab_parallel.h>
#include <torch/nn/functional/loss.h>

#include <limits>

#include "distributed/processes.h"
#include "distributed/whole_and_parts.h"
#include "support/expect.h"

namespace heed::test::of_vocab_parallel {
namespace {

using distributed::gather_scores;
using distributed::vocab_parallel_cross_entropy;

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

}  // namespace
}  // namespace heed::test::of_vocab_parallel
