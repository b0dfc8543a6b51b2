// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <heed/attend.h>
#include <heed/attention.h>
#include <heed/group_query_attention.h>
#include <heed/multi_head_attention.h>
#include <heed/norm.h>
#include <heed/rotary_embedding.h>
#include <torch/nn/modules/container/any.h>
#include <torch/optim/adam.h>
#include <torch/utils.h>

#include <fstream>
#include <string>
#include <vector>

#include "support/expect.h"
#include "support/inputs.h"
#include "support/seeds.h"
#include "support/threads.h"

namespace heed::test {
namespace {

constexpr int kThreads = 8;
constexpr int64_t kWidth = 16;

struct Subject {
  std::string name;
  torch::nn::AnyModule module;
};

/// Every class; of those with heads, each option that keeps something between calls.
std::vector<Subject> subjects(double dropout) {
  const auto heads = MultiHeadAttentionOptions(kWidth, 4).dropout(dropout).causal(true);
  const auto groups = GroupQueryAttentionOptions(kWidth, 4, 2).dropout(dropout).causal(true);
  const RotaryEmbeddingOptions rotary(/*head_dim=*/4);
  auto dynamic = rotary;
  dynamic.scaling(NtkScaling(2.0).original_length(8));
  return {{"Attention", torch::nn::AnyModule(Attention(kWidth, dropout))},
          {"AttentionV1", torch::nn::AnyModule(AttentionV1(kWidth, dropout))},
          {"MultiHeadAttention", torch::nn::AnyModule(MultiHeadAttention(
                                     MultiHeadAttentionOptions(heads).rotary(rotary).sinks(true)))},
          {"MultiHeadAttention, ALiBi",
           torch::nn::AnyModule(MultiHeadAttention(
               MultiHeadAttentionOptions(heads).alibi(true).qk_norm(QkNormOptions())))},
          {"GroupQueryAttention", torch::nn::AnyModule(GroupQueryAttention(
                                      GroupQueryAttentionOptions(groups).rotary(dynamic)))},
          {"GroupQueryAttention, ALiBi",
           torch::nn::AnyModule(
               GroupQueryAttention(GroupQueryAttentionOptions(groups).alibi(true).window(3)))}};
}

/// Lengths differ, so that threads take from each other what a module remembers of the last call.
TEST(Threads, ShareAModule) {
  constexpr int kCalls = 1250;
  torch::manual_seed(moved(1));
  const at::NoGradGuard no_grad;
  for (auto& [name, module] : subjects(/*dropout=*/0.1)) {
    module.ptr()->eval();
    std::vector<at::Tensor> inputs, alone;
    for (int n = 0; n < kThreads; ++n) {
      inputs.push_back(uniform({2, 1 + 3 * n, kWidth}, at::kFloat));
      alone.push_back(module.forward(inputs.back()));
    }
    std::vector<int> different(kThreads);
    on_threads(kThreads, [&, shared = &module](int n) {
      const at::NoGradGuard no_grad_here;
      for (int call = 0; call < kCalls; ++call) {
        const auto i = static_cast<size_t>((n + call) % kThreads);
        if (!shared->forward(inputs[i]).equal(alone[i])) ++different[static_cast<size_t>(n)];
      }
    });
    EXPECT_EQ(different, std::vector<int>(kThreads)) << name;
  }
}

/// The losses of some steps towards a copy of the input.
std::vector<double> train(torch::nn::AnyModule& module, const at::Tensor& input) {
  torch::optim::Adam optimizer(module.ptr()->parameters(), torch::optim::AdamOptions(1e-2));
  std::vector<double> losses;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    const auto loss = (module.forward(input) - input).square().mean();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

struct Trained {
  std::vector<std::vector<double>> losses;
  at::Tensor generator;
};

/// Trains modules that are the same at each call, in parallel or one after the other.
Trained train_all(bool in_parallel, double dropout) {
  torch::manual_seed(moved(2));
  std::vector<torch::nn::AnyModule> modules;
  while (modules.size() < kThreads) {
    for (auto& subject : subjects(dropout)) modules.push_back(std::move(subject.module));
  }
  const auto input = uniform({2, 9, kWidth}, at::kFloat);
  Trained trained;
  trained.losses.resize(kThreads);
  const auto work = [&](int n) {
    const auto i = static_cast<size_t>(n);
    trained.losses[i] = train(modules[i], input);
  };
  if (in_parallel) {
    on_threads(kThreads, work);
  } else {
    for (int n = 0; n < kThreads; ++n) work(n);
  }
  trained.generator = at::globalContext().defaultGenerator(at::kCPU).get_state();
  return trained;
}

TEST(Threads, TrainModulesInParallel) {
  const auto alone = train_all(/*in_parallel=*/false, /*dropout=*/0);
  EXPECT_EQ(train_all(/*in_parallel=*/true, /*dropout=*/0).losses, alone.losses);
  for (const auto& losses : alone.losses) EXPECT_LT(losses.back(), 0.9 * losses.front());
}

/// LibTorch has one generator for all threads: who draws which number is a matter of chance, but
/// each number is drawn once.
TEST(Threads, ShareDropoutsGenerator) {
  const auto alone = train_all(/*in_parallel=*/false, /*dropout=*/0.1);
  const auto trained = train_all(/*in_parallel=*/true, /*dropout=*/0.1);
  EXPECT_TRUE(trained.generator.equal(alone.generator));
  for (const auto& losses : trained.losses) EXPECT_LT(losses.back(), losses.front());
}

int threads_of_process() {
  std::ifstream status("/proc/self/status");
  const std::string key = "Threads:";
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, key.size(), key) == 0) return std::stoi(line.substr(key.size()));
  }
  return 0;
}

/// Waking a team takes microseconds, and far longer where other programs use the cores: the thread
/// that calls does small work alone.
void expect_sleep_through_small_work() {
  const auto attend_all = [](at::IntArrayRef sizes) {
    const auto query = uniform(sizes, at::kFloat).requires_grad_();
    const auto key = uniform(sizes, at::kFloat).requires_grad_();
    attend(query, key, key, AttendOptions().causal(true).softcap(5.0)).sum().backward();
    const at::NoGradGuard no_grad;
    attend(query.narrow(2, 0, 1), key, key);
  };
  RotaryEmbedding rotary(RotaryEmbeddingOptions(16));
  Norm norm(NormOptions(16).kind(NormKind::rms_norm));
  uniform({2}, at::kFloat).requires_grad_().sum().backward();  // may start a thread of autograd
  const auto at_first = threads_of_process();
  for (int step = 0; step < 3; ++step) {
    attend_all({2, 4, 16, 16});
    norm(rotary(uniform({2, 4, 32, 16}, at::kFloat))).sum().backward();
  }
  EXPECT_EQ(threads_of_process(), at_first);
  attend_all({4, 8, 256, 64});
  EXPECT_GT(threads_of_process(), at_first);
}

/// Each thread that calls wakes a team of its own: a new one has none yet.
TEST(Threads, SleepThroughSmallWork) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "with ThreadSanitizer, the threads of a team end with its work";
#endif
  on_threads(1, [](int) {
    const ThreadsGuard team(4);
    expect_sleep_through_small_work();
  });
}

}  // namespace
}  // namespace heed::test
